//! A record out of the peer's memory, whose program does nothing.

use comparison_sideway::{End, Memory, Outcome, expect, listen, offered};
use sideway::ibverbs::AccessFlags;
use sideway::rdmacm::communication_manager::EventType;

fn main() -> Outcome<()> {
    let address = "127.0.0.1:7471".parse()?;
    let (channel, _listener) = listen(address)?;
    let server = std::thread::spawn(move || {
        let mut end = End::accept(expect(&channel, EventType::ConnectRequest)?)?;
        expect(&channel, EventType::Established)?.ack()?;
        let memory = Memory::new(&end.pd, vec![7; 4096], AccessFlags::RemoteRead.into())?;
        end.send(&memory.offer())?;
        expect(&channel, EventType::Disconnected)?.ack()?;
        Ok(())
    });
    let (mut end, _channel) = End::connect(address)?;
    let (addr, rkey) = offered(&end.receive()?);
    let mut record = Memory::new(&end.pd, vec![0; 64], AccessFlags::LocalWrite)?;
    end.read(&mut record, (addr + 1024, rkey))?;
    assert_eq!(record.bytes[..], [7; 64]);
    end.id.disconnect()?;
    server.join().unwrap()
}
