//! Moves a large block to another process of this host: by one RDMA write into shared memory, by TCP, and by memcpy within
//! the process, by turns. Prints the rates.
//!
//! `cargo run --release -p portolan --example bulk [MIB]` moves 64 MiB, or as many as given. The program starts
//! itself again as the sender: memory of the same process would be no comparison.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use portolan::{Access, Buffer, Connection, Connector, Listener, Options, RemoteMemory};

const ROUNDS: usize = 5;
/// Bytes of a TCP read or write.
const PIECE_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Takes the block by both ways, once for each round.
fn receive(listener: &Listener, tcp: &TcpListener, length: usize) -> Outcome<()> {
    let connection = listener.accept_within(PATIENCE)?.accept()?;
    let (mut stream, _) = tcp.accept()?;
    // The library's own memory: a sender on this host writes to it without packets.
    let memory = connection.share(length, Access::REMOTE_WRITE)?;
    connection
        .send(memory.remote().to_bytes().to_vec())?
        .wait()?;
    let mut block = vec![0; length];
    for round in 0..ROUNDS {
        // The write's immediate data: all of its bytes are in the memory.
        connection.receive_within(PATIENCE)?;
        let mut ends = [0; 2];
        memory.load(0, &mut ends[..1]);
        memory.load(length - 1, &mut ends[1..]);
        assert_eq!(ends, [round as u8; 2], "the block of this round");
        for piece in block.chunks_mut(PIECE_BYTES) {
            stream.read_exact(piece)?;
        }
        assert_eq!([block[0], block[length - 1]], ends);
        stream.write_all(&[0])?;
    }
    connection.wait_disconnected(PATIENCE)?;
    Ok(())
}

/// One RDMA write of the whole block. Returns the block.
fn write(connection: &Connection, block: Buffer, to: RemoteMemory) -> Outcome<Buffer> {
    Ok(connection
        .write_with_immediate(block, to, 0)?
        .wait()?
        .buffer)
}

fn send(address: &str, tcp: &str, length: usize) -> Outcome<()> {
    let connector = Connector::new().options(Options::default().timeout(PATIENCE));
    let connection = connector.connect(address)?;
    let mut stream = TcpStream::connect(tcp)?;
    let offer = connection.receive_within(PATIENCE)?;
    let memory = RemoteMemory::from_bytes(&offer).ok_or("no offer")?;
    let mut block = Buffer::from(vec![1; length]);
    let mut copy = vec![2; length];
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..ROUNDS {
        block.fill(round as u8);
        let started = Instant::now();
        copy.copy_from_slice(&block);
        times[0].push(started.elapsed());
        assert_eq!(copy[length / 2], round as u8);

        let started = Instant::now();
        block = write(&connection, block, memory)?;
        times[1].push(started.elapsed());

        let started = Instant::now();
        for piece in block.chunks(PIECE_BYTES) {
            stream.write_all(piece)?;
        }
        stream.read_exact(&mut [0])?;
        times[2].push(started.elapsed());
    }
    let [memcpy, write, tcp] = times.map(|mut times| {
        times.sort();
        length as f64 / times[ROUNDS / 2].as_secs_f64() / f64::from(1 << 30)
    });
    println!("memcpy: {memcpy:.2} GiB/s");
    println!(
        "WRITE: {write:.2} GiB/s, {:.2} of memcpy, {:.2} of TCP",
        write / memcpy,
        write / tcp
    );
    println!("TCP: {tcp:.2} GiB/s, {:.2} of memcpy", tcp / memcpy);
    connection.close(PATIENCE)?;
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [address, tcp, length] = &arguments[..] {
        return send(address, tcp, length.parse()?);
    }
    let mib: usize = arguments.first().map_or(Ok(64), |mib| mib.parse())?;
    let length = mib << 20;
    let listener = Listener::bind("127.0.0.1:0")?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = Command::new(std::env::current_exe()?)
        .args([
            listener.local_addr()?.to_string(),
            tcp.local_addr()?.to_string(),
            length.to_string(),
        ])
        .spawn()?;
    receive(&listener, &tcp, length)?;
    match sender.wait()?.success() {
        true => Ok(()),
        false => Err("the sender failed".into()),
    }
}
