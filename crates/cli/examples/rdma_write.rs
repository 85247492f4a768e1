//! An RDMA write of many bytes, verified by the receiver.
//!
//! It moves much data to show that nothing is lost on a bad network. Without arguments it is both sides;
//! `portolan-rdma-write at ADDR:PORT` is only the receiver, `… to ADDR:PORT [MIB]` only the writer.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use portolan::{Access, Buffer, Cause, Connector, Listener, RemoteMemory, SharedMemory};

/// Bytes of each write.
const CHUNK: usize = 1 << 20;
/// Writes in flight at a time.
const IN_FLIGHT: usize = 4;
/// The most memory that the receiver allocates.
const MAX_MIB: u64 = 1024;
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the writer waits for the answer to its disconnect.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => {
            let listener = Listener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?.to_string();
            let receiver = thread::spawn(move || receive(&listener).map_err(|e| e.to_string()));
            write(&address, 4)?;
            Ok(receiver.join().expect("the receiver does not panic")?)
        }
        ["at", address] => {
            let listener = Listener::bind(address)?;
            println!("listening on {}", listener.local_addr()?);
            receive(&listener)
        }
        ["to", address] => write(address, 64),
        ["to", address, mib] => write(address, mib.parse()?),
        _ => Err("usage: portolan-rdma-write [at ADDR:PORT | to ADDR:PORT [MIB]]".into()),
    }
}

/// Allocates as much memory as the writer asks for, and reports how many bytes are right.
fn receive(listener: &Listener) -> Result<()> {
    let connection = listener.accept_within(PATIENCE)?.accept()?;
    let mib = u64::from_be_bytes(connection.receive_within(PATIENCE)?[..].try_into()?);
    if !(1..=MAX_MIB).contains(&mib) {
        return Err(format!("1 to {MAX_MIB} MiB are taken, not {mib}").into());
    }
    let memory = connection.share(mib as usize * CHUNK, Access::REMOTE_WRITE)?;
    let offer = connection.buffer_from(&memory.remote().to_bytes())?;
    connection.send(offer)?.wait()?;
    let _written = connection.receive_within(PATIENCE)?;
    let right = verify(&memory);
    let answer = connection.buffer_from(&right.to_be_bytes())?;
    match connection.send(answer)?.wait() {
        Ok(_) => connection.wait_disconnected(PATIENCE)?,
        // The writer disconnects once it has the answer, whether or not the acknowledgement arrived here.
        Err(failed) if matches!(failed.error.cause, Cause::Disconnected) => {}
        Err(failed) => return Err(failed.into()),
    }
    if right != memory.len() as u64 {
        return Err(format!("{right} of {} bytes are right", memory.len()).into());
    }
    Ok(())
}

/// Writes `mib` MiB and waits until the receiver confirms them.
fn write(address: &str, mib: u64) -> Result<()> {
    let connection = Connector::new().connect(address)?;
    connection
        .send(connection.buffer_from(&mib.to_be_bytes())?)?
        .wait()?;
    let offer = connection.receive_within(PATIENCE)?;
    let remote = RemoteMemory::from_bytes(&offer).ok_or("the receiver offers no memory")?;
    let started = Instant::now();
    let mut under_way = VecDeque::new();
    for chunk in 0..mib {
        let mut buffer: Buffer = match under_way.len() < IN_FLIGHT {
            true => connection.buffer(CHUNK)?,
            false => {
                let oldest: portolan::Transfer = under_way.pop_front().expect("it is not empty");
                oldest.wait()?.buffer
            }
        };
        let start = chunk * CHUNK as u64;
        fill(&mut buffer, start);
        let place = remote
            .slice(usize::try_from(start)?, CHUNK)
            .ok_or("the receiver offers too little memory")?;
        under_way.push_back(connection.write(buffer, place)?);
    }
    for transfer in under_way {
        transfer.wait()?;
    }
    connection
        .send(connection.buffer_from(b"written")?)?
        .wait()?;
    let took = started.elapsed();
    let right = u64::from_be_bytes(connection.receive_within(PATIENCE)?[..].try_into()?);
    let all = mib * CHUNK as u64;
    if right != all {
        return Err(format!("{right} of {all} bytes arrived unchanged").into());
    }
    println!(
        "{mib} MiB written in {:.1} s and verified",
        took.as_secs_f64()
    );
    // The receiver ends when it gets this, and does not repeat a lost answer.
    let _ = connection.close(FAREWELL_TIMEOUT);
    Ok(())
}

/// The expected bytes from `start` on. No two parts are alike.
fn fill(bytes: &mut [u8], start: u64) {
    for (word, at) in bytes.chunks_mut(8).zip((start / 8)..) {
        let value = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// The number of right bytes.
fn verify(memory: &SharedMemory) -> u64 {
    let (mut got, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    let chunks = (0..memory.len()).step_by(CHUNK);
    chunks
        .map(|start| {
            memory.load(start, &mut got);
            fill(&mut expected, start as u64);
            let right = got
                .iter()
                .zip(&expected)
                .filter(|(got, right)| got == right);
            right.count() as u64
        })
        .sum()
}
