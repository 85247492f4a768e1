//! A counter of the peer's, which is added to.

use comparison_sideway::{End, Memory, Outcome, expect, listen, offered};
use sideway::ibverbs::AccessFlags;
use sideway::rdmacm::communication_manager::EventType;

fn main() -> Outcome<()> {
    let address = "127.0.0.1:7471".parse()?;
    let (channel, _listener) = listen(address)?;
    let server = std::thread::spawn(move || {
        let mut end = End::accept(expect(&channel, EventType::ConnectRequest)?)?;
        expect(&channel, EventType::Established)?.ack()?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteAtomic;
        let counter = Memory::new(&end.pd, vec![0; 8], access)?;
        end.send(&counter.offer())?;
        expect(&channel, EventType::Disconnected)?.ack()?;
        assert_eq!(counter.bytes[..], 50u64.to_ne_bytes());
        Ok(())
    });
    let (mut end, _channel) = End::connect(address)?;
    let counter = offered(&end.receive()?);
    let mut before = Memory::new(&end.pd, vec![0; 8], AccessFlags::LocalWrite)?;
    for round in 0..10u64 {
        end.fetch_add(&mut before, counter, 5)?;
        assert_eq!(before.bytes[..], (round * 5).to_ne_bytes());
    }
    end.id.disconnect()?;
    server.join().unwrap()
}
