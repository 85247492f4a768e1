// One message, there and back.

use portolan::{Connector, Error, Listener};

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        let connection = listener.accept()?.accept()?;
        connection.send(connection.receive()?.into_buffer()?)?.wait()?;
        connection.wait_disconnected(std::time::Duration::from_secs(10))
    });
    let connection = Connector::new().connect_to(address)?;
    connection.send(b"ahoy".to_vec())?.wait()?;
    assert_eq!(&connection.receive()?[..], b"ahoy");
    drop(connection);
    server.join().unwrap()
}
