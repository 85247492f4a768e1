// A counter of the peer's, which is added to.

use portolan::{Access, Connector, Error, Listener, RemoteMemory};

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        let connection = listener.accept()?.accept()?;
        let counter = connection.share(8, Access::REMOTE_ATOMIC)?;
        connection.send(counter.remote().to_bytes().to_vec())?.wait()?;
        connection.wait_disconnected(std::time::Duration::from_secs(10))?;
        let mut word = [0; 8];
        counter.load(0, &mut word);
        assert_eq!(u64::from_ne_bytes(word), 50);
        Ok(())
    });
    let connection = Connector::new().connect_to(address)?;
    let counter = RemoteMemory::from_bytes(&connection.receive()?).expect("an offer");
    for round in 0..10 {
        let done = connection.fetch_add(vec![0; 8], counter, 5)?.wait()?;
        assert_eq!(done.original(), Some(round * 5));
    }
    drop(connection);
    server.join().unwrap()
}
