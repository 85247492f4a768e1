// 1 MiB into the peer's memory, and a note that it is there.

use portolan::{Access, Connector, Error, Listener, RemoteMemory};

const LENGTH: usize = 1 << 20;

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        let connection = listener.accept()?.accept()?;
        let memory = connection.share(LENGTH, Access::REMOTE_WRITE)?;
        connection.send(memory.remote().to_bytes().to_vec())?.wait()?;
        connection.receive()?;
        assert_eq!(connection.revoke(memory)?[..], [7; LENGTH]);
        Ok(())
    });
    let connection = Connector::new().connect_to(address)?;
    let remote = RemoteMemory::from_bytes(&connection.receive()?).expect("an offer");
    connection.write_with_immediate(vec![7; LENGTH], remote, 1)?.wait()?;
    server.join().unwrap()
}
