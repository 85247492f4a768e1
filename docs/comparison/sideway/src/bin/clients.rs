//! Twenty clients at once, each with ten messages there and back.

use comparison_sideway::{End, Outcome, listen};
use sideway::rdmacm::communication_manager::EventType;

fn serve(mut end: End) -> Outcome<()> {
    for _ in 0..10 {
        let message = end.receive()?;
        end.send(&message)?;
    }
    Ok(())
}

fn talk(address: std::net::SocketAddr, name: u8) -> Outcome<()> {
    let (mut end, _channel) = End::connect(address)?;
    for round in 0..10 {
        end.send(&[name, round])?;
        assert_eq!(end.receive()?, [name, round]);
    }
    Ok(end.id.disconnect()?)
}

fn main() -> Outcome<()> {
    let address = "127.0.0.1:7471".parse()?;
    let (channel, _listener) = listen(address)?;
    // The events of all connections arrive here.
    std::thread::spawn(move || {
        while let Ok(event) = channel.get_cm_event() {
            match event.event_type() {
                EventType::ConnectRequest => {
                    let end = End::accept(event).inspect_err(|error| eprintln!("{error}"))?;
                    std::thread::spawn(move || serve(end));
                }
                _ => event.ack()?,
            }
        }
        Outcome::Ok(())
    });
    let client = |name| std::thread::spawn(move || talk(address, name));
    let clients: Vec<_> = (0..20).map(client).collect();
    clients.into_iter().try_for_each(|client| client.join().unwrap())
}
