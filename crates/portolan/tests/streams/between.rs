//! Large transfers between two processes, verified byte by byte: through memory, where the sender copies them, and
//! over UDP.

use std::io::{Read, Write};
use std::time::Duration;

use portolan::Stream;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::death::Peer;
use crate::harness::*;
use crate::pair::*;

const BYTES: usize = 6 << 20;

/// Bytes that depend on their position in the stream.
fn expected(position: usize) -> u8 {
    (position ^ position >> 8 ^ position >> 16).wrapping_mul(167) as u8
}

/// Sends pieces of many lengths, and checks what the peer returns.
fn exchange(stream: &Stream, from: usize, bytes: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut at, mut seed) = (from, 7usize);
            while at < from + bytes {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                let length = [1, 63, 64, 65, 1000, 4097, 65_536, 300_000][seed >> 61];
                let length = length.min(from + bytes - at);
                let piece: Vec<u8> = (at..at + length).map(expected).collect();
                (&*stream).write_all(&piece).unwrap();
                at += length;
            }
        });
        let mut buffer = vec![0; 100_000];
        let mut at = from;
        while at < from + bytes {
            let length = (&*stream).read(&mut buffer).unwrap();
            assert!(length > 0, "the stream ended at {at}");
            for (position, byte) in (at..).zip(&buffer[..length]) {
                assert_eq!(*byte, expected(position), "at {position}");
            }
            at += length;
        }
    });
}

pub(crate) fn connected(by_udp: bool) -> (Peer, Stream) {
    let port = free_port();
    let provider = start(port);
    let mut peer = Peer::start(port, None, by_udp);
    let options = stream_options().provider(provider);
    let address = peer.address().parse().unwrap();
    let stream = Stream::connect_to(address, &options).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    (peer, stream)
}

#[test]
fn every_byte_arrives_through_memory() {
    let (_peer, stream) = connected(false);
    exchange(&stream, 0, BYTES);
}

#[test]
fn every_byte_arrives_over_udp() {
    let (_peer, stream) = connected(true);
    exchange(&stream, 0, BYTES);
}

#[test]
fn a_peer_that_is_stopped_for_a_while_loses_nothing() {
    let (peer, stream) = connected(false);
    exchange(&stream, 0, BYTES / 4);
    let pid = Pid::from_raw(peer.0.id().cast_signed()).unwrap();
    for round in 1..4 {
        kill_process(pid, Signal::STOP).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                kill_process(pid, Signal::CONT).unwrap();
            });
            exchange(&stream, round * BYTES / 4, BYTES / 4);
        });
    }
}

/// Stops a peer, and waits until none of its threads runs.
pub(crate) fn stop(peer: &Peer) -> Pid {
    let pid = Pid::from_raw(peer.0.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    pid
}

#[test]
fn closing_waits_for_a_peer_that_does_not_run() {
    for by_udp in [false, true] {
        let (peer, mut stream) = connected(by_udp);
        let pid = stop(&peer);
        stream.write_all(b"words").unwrap();
        let error = stream.close(Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
        kill_process(pid, Signal::CONT).unwrap();
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_that_closes_waits_until_the_peer_runs_again() {
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    let (peer, stream) = connected(true);
    let mut stream = portolan::stream::AsyncStream::new(stream).unwrap();
    let pid = stop(&peer);
    stream.write_all(b"words").await.unwrap();
    let closed = timeout(Duration::from_millis(200), stream.close()).await;
    assert!(closed.is_err(), "{closed:?}");
    kill_process(pid, Signal::CONT).unwrap();
    timeout(PATIENCE, stream.close()).await.unwrap().unwrap();
}

#[test]
fn a_peer_that_is_killed_in_the_middle_ends_the_stream() {
    for round in 0..5 {
        let (mut peer, stream) = connected(false);
        std::thread::scope(|scope| {
            // Nobody reads the answers: the peer stops, and then so does this side.
            let writer = scope.spawn(|| {
                let piece = vec![3; 100_000];
                loop {
                    if let Err(error) = (&stream).write_all(&piece) {
                        return error;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(round * 7));
            peer.0.kill().unwrap();
            let error = writer.join().unwrap();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        });
    }
}
