// Twenty clients at once, each with ten messages there and back.

use portolan::{Connection, Connector, Error, Listener};

fn serve(connection: &Connection) -> Result<(), Error> {
    while let Ok(message) = connection.receive() {
        connection.send(message.into_buffer()?)?.wait()?;
    }
    Ok(())
}

fn talk(address: std::net::SocketAddr, name: u8) -> Result<(), Error> {
    let connection = Connector::new().connect_to(address)?;
    for round in 0..10 {
        connection.send(vec![name, round])?.wait()?;
        assert_eq!(connection.receive()?[..], [name, round]);
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        while let Ok(incoming) = listener.accept() {
            std::thread::spawn(move || serve(&incoming.accept()?));
        }
    });
    let client = |name| std::thread::spawn(move || talk(address, name));
    let clients: Vec<_> = (0..20).map(client).collect();
    clients.into_iter().try_for_each(|client| client.join().unwrap())
}
