//! The yardstick for data: plain UDP sockets, used as efficiently as possible.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};

use super::{PATIENCE, Streamed};
use crate::latency::Latencies;

/// The longest datagram of a ping-pong.
const DATAGRAM_MAX: usize = 4096;
/// Length of a datagram in a stream: that of a RoCEv2 packet with the largest path MTU.
const SEGMENT_LEN: usize = 4096 + 16;
/// Datagrams per system call: as many as fit into the kernel's limit of 64 KiB.
const SEGMENTS: usize = 15;
/// Maximum length of one receive.
const RECEIVE_LEN: usize = 1 << 16;
/// A stream ends when no datagram arrives for this long.
const SILENCE: Duration = Duration::from_millis(100);
/// Number of unsuccessful receives between checks of the clock.
const LOOK_EVERY: u32 = 4096;

/// Echoes `count` datagrams, polling. The socket is connected and non-blocking.
pub(super) fn echo(socket: &UdpSocket, count: u32) -> Result<()> {
    let mut buffer = [0; DATAGRAM_MAX];
    for _ in 0..count {
        let len = receive_polling(socket, &mut buffer)?;
        socket.send(buffer.get(..len).unwrap_or_default())?;
    }
    Ok(())
}

/// Sends a datagram and polls for the answer, `count` times.
pub(super) fn ping(
    socket: &UdpSocket,
    size: usize,
    count: u32,
    latencies: &mut Latencies,
) -> Result<()> {
    let mut buffer = vec![0; size];
    for _ in 0..count {
        let start = Instant::now();
        socket.send(&buffer)?;
        receive_polling(socket, &mut buffer)?;
        latencies.record(start.elapsed());
    }
    Ok(())
}

fn receive_polling(socket: &UdpSocket, buffer: &mut [u8]) -> Result<usize> {
    let deadline = Instant::now() + PATIENCE;
    for turn in 1_u32.. {
        match socket.recv(buffer) {
            Ok(len) => return Ok(len),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if turn.is_multiple_of(LOOK_EVERY) && Instant::now() > deadline {
            break;
        }
    }
    bail!("no datagram within {PATIENCE:?}: lost")
}

/// Sends datagrams for a time; the kernel segments them.
pub(super) fn stream(to: SocketAddr, time: Duration) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(to)?;
    setsockopt(&socket, UdpGsoSegment, &(SEGMENT_LEN as i32))
        .context("the kernel does not segment datagrams (UDP_SEGMENT)")?;
    let bytes = vec![0; SEGMENT_LEN * SEGMENTS];
    let end = Instant::now() + time;
    while Instant::now() < end {
        socket.send(&bytes)?;
    }
    Ok(())
}

/// A socket for a stream; the kernel coalesces its datagrams.
pub(super) fn stream_receiver() -> Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    setsockopt(&socket, UdpGroSegment, &true)
        .context("the kernel does not coalesce datagrams (UDP_GRO)")?;
    Ok(socket)
}

/// Receives a stream to its end.
pub(super) fn receive_stream(socket: &UdpSocket) -> Result<Streamed> {
    let mut buffer = vec![0; RECEIVE_LEN];
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.recv(&mut buffer).context("no stream arrived")?;
    socket.set_read_timeout(Some(SILENCE))?;
    // Data that arrived before the clock started does not count.
    let (start, mut last, mut bytes) = (Instant::now(), Instant::now(), 0);
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) => {
                bytes += len as u64;
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Streamed {
        bytes,
        time: last - start,
    })
}
