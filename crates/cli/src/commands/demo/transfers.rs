//! The data transfers of the demonstration; each is verified.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portolan::{Connection, RemoteMemory};

use super::{MAX_MESSAGE_LEN, MEMORY_LEN};
use crate::commands::messages::Outbox;
use crate::latency::Latencies;

/// Number of round trips for the latency figures, and their length.
const PINGS: usize = 1000;
pub(super) const PING_LEN: usize = 64;
const MESSAGE: &[u8] = b"A portolan chart shows the ports and the courses between them.";
/// Time limit for any answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// An operation that succeeded.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) operation: &'static str,
    pub(super) len: usize,
    pub(super) time: Duration,
    /// How it was verified.
    pub(super) checked: &'static str,
}

/// The completed transfers.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) moved: Vec<Moved>,
    pub(super) latencies: Latencies,
}

impl Transfers {
    /// Transfers data by send, RDMA write and RDMA read; then measures round trips. `note` receives the next step.
    pub(super) fn run(connection: &Connection, note: impl Fn(&str)) -> Result<Transfers> {
        let memory = connection.receive_within(ANSWER_TIMEOUT)?;
        let memory = RemoteMemory::from_bytes(&memory)
            .context("the second process did not say where its memory is")?;
        let mut outbox = Outbox::new(MAX_MESSAGE_LEN);
        note("a message, there and back");
        let mut moved = vec![send(connection, &mut outbox)?];
        note("a write of 1 MiB");
        let pattern = pattern();
        moved.push(write(connection, memory, &pattern)?);
        note("a read of 1 MiB");
        moved.push(read(connection, memory, &pattern)?);
        note("1000 messages, there and back");
        let latencies = ping(connection, &mut outbox)?;
        Ok(Transfers { moved, latencies })
    }
}

fn send(connection: &Connection, outbox: &mut Outbox) -> Result<Moved> {
    let start = Instant::now();
    outbox.post_or_wait(connection, MESSAGE)?;
    let echo = connection.receive_within(ANSWER_TIMEOUT)?;
    let time = start.elapsed();
    ensure!(*echo == *MESSAGE, "the message came back changed");
    Ok(Moved {
        operation: "SEND",
        len: MESSAGE.len(),
        time,
        checked: "and the peer sent it back",
    })
}

/// A pattern that does not repeat, so that a misplaced packet is noticed.
fn pattern() -> Vec<u8> {
    (0..MEMORY_LEN).map(|i| (i * 31 + (i >> 8)) as u8).collect()
}

fn write(connection: &Connection, memory: RemoteMemory, pattern: &[u8]) -> Result<Moved> {
    let source = connection.buffer_from(pattern)?;
    let start = Instant::now();
    connection
        .write(source, memory)
        .and_then(|write| write.wait())
        .map_err(|failed| failed.error)?;
    Ok(Moved {
        operation: "RDMA WRITE",
        len: pattern.len(),
        time: start.elapsed(),
        checked: "into the peer's memory",
    })
}

/// Reads back the written data, which proves both.
fn read(connection: &Connection, memory: RemoteMemory, pattern: &[u8]) -> Result<Moved> {
    let sink = connection.buffer(MEMORY_LEN)?;
    let start = Instant::now();
    let read = connection
        .read(sink, memory)
        .and_then(|read| read.wait())
        .map_err(|failed| failed.error)?;
    let time = start.elapsed();
    ensure!(
        *read.buffer == *pattern,
        "what was read is not what was written"
    );
    Ok(Moved {
        operation: "RDMA READ",
        len: MEMORY_LEN,
        time,
        checked: "back from it, and every byte is the same",
    })
}

fn ping(connection: &Connection, outbox: &mut Outbox) -> Result<Latencies> {
    let mut latencies = Latencies::new();
    let mut message = [0; PING_LEN];
    for seq in 0..PINGS {
        crate::rping::fill(&mut message, seq as u64);
        let start = Instant::now();
        outbox.post_or_wait(connection, &message)?;
        let echo = connection.receive_within(ANSWER_TIMEOUT)?;
        latencies.record(start.elapsed());
        ensure!(*echo == message, "message {seq} came back changed");
    }
    Ok(latencies)
}
