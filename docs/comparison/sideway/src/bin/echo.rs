//! One message, there and back.

use comparison_sideway::{End, Outcome, expect, listen};
use sideway::rdmacm::communication_manager::EventType;

fn main() -> Outcome<()> {
    let address = "127.0.0.1:7471".parse()?;
    let (channel, _listener) = listen(address)?;
    let server = std::thread::spawn(move || {
        let mut end = End::accept(expect(&channel, EventType::ConnectRequest)?)?;
        expect(&channel, EventType::Established)?.ack()?;
        let message = end.receive()?;
        end.send(&message)?;
        expect(&channel, EventType::Disconnected)?.ack()?;
        Ok(())
    });
    let (mut end, _channel) = End::connect(address)?;
    end.send(b"ahoy")?;
    assert_eq!(end.receive()?, b"ahoy");
    end.id.disconnect()?;
    server.join().unwrap()
}
