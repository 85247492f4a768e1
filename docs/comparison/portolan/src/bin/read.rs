// A record out of the peer's memory, whose program does nothing.

use portolan::{Access, Connector, Error, Listener, RemoteMemory};

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        let connection = listener.accept()?.accept()?;
        let memory = connection.share_memory(vec![7; 4096], Access::REMOTE_READ);
        let memory = memory.map_err(|(error, _)| error)?;
        connection.send(memory.remote().to_bytes().to_vec())?.wait()?;
        connection.wait_disconnected(std::time::Duration::from_secs(10))
    });
    let connection = Connector::new().connect_to(address)?;
    let table = RemoteMemory::from_bytes(&connection.receive()?).expect("an offer");
    let record = table.slice(1024, 64).expect("it is inside");
    let done = connection.read(vec![0; 64], record)?.wait()?;
    assert_eq!(done.buffer[..], [7; 64]);
    drop(connection);
    server.join().unwrap()
}
