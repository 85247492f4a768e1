//! An RDMA read: one side shares memory and says where it is, the other reads it without the first
//! one's doing.
//!
//! `cargo run -p portolan --example rdma_read`

use std::thread;
use std::time::Duration;

use portolan::{Access, Connector, Error, Listener, RemoteMemory};

const CHART: &[u8] = b"Here the coast bends north, and there is good anchorage.";
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let owner = thread::spawn(move || share(&listener));

    let connection = Connector::new().connect(&address.to_string())?;
    let offer = connection.receive_within(PATIENCE)?;
    let remote = RemoteMemory::from_bytes(&offer).expect("the owner sends where its memory is");

    let buffer = connection.buffer(remote.length as usize)?;
    let chart = connection.read(buffer, remote)?.wait()?.buffer;
    println!("{}", String::from_utf8_lossy(&chart));
    assert_eq!(&chart[..], CHART);

    connection.close(PATIENCE)?;
    owner.join().expect("the owner does not panic")
}

/// Shares the chart until the peer disconnects.
fn share(listener: &Listener) -> Result<(), Error> {
    let connection = listener.accept_within(PATIENCE)?.accept()?;
    let memory = connection.share(CHART.len(), Access::REMOTE_READ)?;
    memory.store(0, CHART);
    connection
        .send(connection.buffer_from(&memory.remote().to_bytes())?)?
        .wait()?;
    connection.wait_disconnected(PATIENCE)
}
