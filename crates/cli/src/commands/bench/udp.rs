//! The yardstick of data: plain UDP sockets, used as well as they can be.

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
/// Bytes of a datagram of a stream: those of a RoCEv2 packet with the largest path MTU.
const SEGMENT_LEN: usize = 4096 + 16;
/// Datagrams that the kernel is given at once: as many as fit what it takes, 64 KiB.
const SEGMENTS: usize = 15;
/// Bytes that may be received at once.
const RECEIVE_LEN: usize = 1 << 16;
/// A stream without datagrams for so long has ended.
const SILENCE: Duration = Duration::from_millis(100);
/// Fruitless receives between looks at the clock.
const LOOK_EVERY: u32 = 4096;

/// Answers so many datagrams, polling. The socket is connected and does not block.
pub(super) fn echo(socket: &UdpSocket, count: u32) -> Result<()> {
    let mut buffer = [0; DATAGRAM_MAX];
    for _ in 0..count {
        let len = receive_polling(socket, &mut buffer)?;
        socket.send(buffer.get(..len).unwrap_or_default())?;
    }
    Ok(())
}

/// Sends a datagram and polls for the answer, so many times.
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
    bail!("no datagram within {PATIENCE:?}: it was lost")
}

/// Sends datagrams for a time, segmented by the kernel.
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

/// A socket for a stream, whose datagrams the kernel coalesces.
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
    socket.recv(&mut buffer).context("no stream comes")?;
    socket.set_read_timeout(Some(SILENCE))?;
    // What came before the clock started does not count.
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
