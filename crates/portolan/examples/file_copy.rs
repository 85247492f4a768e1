//! Copies a file with one RDMA write. The receiver shares memory of the file's size, and the sender fills it.
//!
//! `cargo run -p portolan --example file_copy` copies a file that it creates; `file_copy receive ADDRESS FILE` and
//! `file_copy send FILE ADDRESS` run one end.
//!
//! Only the devices copy the file's bytes: the sender turns the vector that it read into the buffer that it sends, and the
//! receiver writes the memory that it shared to its file. Between two processes of one host the copy is a memcpy, because the
//! memory is the library's own.

use std::path::Path;
use std::thread;
use std::time::Duration;

use portolan::{Access, Connector, Listener, RemoteMemory};

const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn receive(listener: &Listener, to: &Path) -> Outcome<usize> {
    let incoming = listener.accept()?;
    // The request's private data says how long the file is.
    let length = u64::from_be_bytes(*incoming.private_data().first_chunk().ok_or("no length")?);
    let connection = incoming.accept()?;
    let memory = connection.share(usize::try_from(length)?, Access::REMOTE_WRITE)?;
    let offer = memory.remote().to_bytes().to_vec();
    connection.send(offer)?.wait()?;
    // The write's immediate data: the whole file has been placed.
    connection.receive_within(PATIENCE)?;
    let file = memory.revoke()?;
    std::fs::write(to, &file[..])?;
    connection.close(PATIENCE)?;
    Ok(file.len())
}

fn send(file: &Path, address: &str) -> Outcome<usize> {
    let bytes = std::fs::read(file)?;
    let length = bytes.len();
    let connector = Connector::new().private_data((length as u64).to_be_bytes());
    let connection = connector.connect(address)?;
    let offer = connection.receive_within(PATIENCE)?;
    let memory = RemoteMemory::from_bytes(&offer).ok_or("no offer")?;
    connection.write_with_immediate(bytes, memory, 0)?.wait()?;
    connection.wait_disconnected(PATIENCE)?;
    Ok(length)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["receive", address, file] => {
            let length = receive(&Listener::bind(address)?, file.as_ref())?;
            println!("received {length} bytes");
            return Ok(());
        }
        ["send", file, address] => {
            println!("sent {} bytes", send(file.as_ref(), address)?);
            return Ok(());
        }
        _ => {}
    }
    let folder = std::env::temp_dir().join(format!("portolan-file-copy-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let (from, to) = (folder.join("chart"), folder.join("copy"));
    let chart: Vec<u8> = (0..10_000_000_u32).map(|at| (at >> 8) as u8).collect();
    std::fs::write(&from, &chart)?;
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let copy = to.clone();
    let receiving = thread::spawn(move || receive(&listener, &copy));
    let sent = send(&from, &address)?;
    let received = receiving.join().expect("the receiver does not panic")?;
    assert!(std::fs::read(&to)? == chart, "the copy is the chart");
    std::fs::remove_dir_all(&folder)?;
    println!("sent {sent} bytes, received {received}");
    Ok(())
}
