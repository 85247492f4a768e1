//! IP packets as in a capture. Whatever parses is printed and emitted again, byte for byte the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::icrc::{self, Identification};
use portolan_wire::ip::Datagram;
use portolan_wire::rocev2::{Headers, Packet};

fuzz_target!(|bytes: &[u8]| {
    transport(bytes);
    if let Ok(Some(datagram)) = Datagram::parse(bytes) {
        if let Ok((flow, identification)) = datagram.flow() {
            for identification in [
                identification,
                Identification::Hidden,
                Identification::Guessed(1),
            ] {
                let _ = icrc::verify(&flow, identification, datagram.payload);
            }
        }
        transport(datagram.payload);
    }
});

fn transport(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let _ = packet.to_string();
    let headers = packet.headers();
    let mut again = vec![0; headers.len()];
    let written = headers.emit(&mut again).expect("headers that were parsed");
    assert_eq!(written, again.len());
    let reread = Headers::parse(&again).expect("headers that were emitted");
    assert_eq!(reread, headers, "emitting and parsing changes nothing");
}
