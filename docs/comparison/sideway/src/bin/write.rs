//! 1 MiB into the peer's memory, and a note that it is there.

use comparison_sideway::{End, Memory, Outcome, expect, listen, offered};
use sideway::ibverbs::AccessFlags;
use sideway::rdmacm::communication_manager::EventType;

const LENGTH: usize = 1 << 20;

fn main() -> Outcome<()> {
    let address = "127.0.0.1:7471".parse()?;
    let (channel, _listener) = listen(address)?;
    let server = std::thread::spawn(move || {
        let mut end = End::accept(expect(&channel, EventType::ConnectRequest)?)?;
        expect(&channel, EventType::Established)?.ack()?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let memory = Memory::new(&end.pd, vec![0; LENGTH], access)?;
        end.send(&memory.offer())?;
        end.receive()?;
        assert_eq!(memory.bytes[..], [7; LENGTH]);
        Ok(())
    });
    let (mut end, _channel) = End::connect(address)?;
    let remote = offered(&end.receive()?);
    let local = Memory::new(&end.pd, vec![7; LENGTH], AccessFlags::LocalWrite)?;
    end.write(&local, remote, 1)?;
    server.join().unwrap()
}
