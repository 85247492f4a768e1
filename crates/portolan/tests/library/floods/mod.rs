//! Floods of the UDP port: existing connections must continue.

mod forged;
#[cfg(feature = "tokio")]
mod half_open;
mod junk;
mod requests;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portolan::Connection;
use portolan::wire::Qpn;

use crate::harness::*;

/// How long a flood lasts.
const FLOOD: Duration = Duration::from_secs(3);
/// Time limit of a message during a flood. Both sides share the machine's few cores with the flood.
const GAP_MAX: Duration = Duration::from_secs(2);

/// Ends the background work of a test, even if a check of the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `send` with increasing numbers, as fast as the kernel accepts packets, while `flooded` runs. Returns
/// the number of calls.
fn flood(send: impl Fn(u64) + Sync, flooded: impl FnOnce()) -> u64 {
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                send(sent.fetch_add(1, Ordering::Relaxed));
            }
        });
        flooded();
    });
    sent.into_inner()
}

/// The address of packets to a UDP port of this host.
fn target(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Exchanges messages while `lasts`. Returns their number and the longest time of one.
fn exchange(near: &Connection, far: &Connection, lasts: &dyn Fn() -> bool) -> (u32, Duration) {
    let (mut count, mut longest) = (0u32, Duration::ZERO);
    while lasts() {
        let started = Instant::now();
        let text = count.to_be_bytes();
        for (from, to) in [(near, far), (far, near)] {
            let buffer = from.buffer_from(&text).unwrap();
            let sent = from.send(buffer).unwrap();
            assert_eq!(&to.receive_within(PATIENCE).unwrap()[..], &text);
            sent.wait().unwrap();
        }
        count += 1;
        longest = longest.max(started.elapsed());
    }
    (count, longest)
}

/// Checks that a connection works while `next` gives packets to its host's port.
#[track_caller]
fn goes_on(port: u16, what: &str, next: impl Fn(u64) -> Vec<u8> + Sync) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    goes_on_under(port, what, |_, number| {
        // A full buffer is part of a flood.
        let _ = socket.send_to(&next(number), target(port));
    });
}

/// Checks that a connection works while `send` floods its host's port. `send` gets both queue pair numbers.
#[track_caller]
fn goes_on_under(port: u16, what: &str, send: impl Fn([Qpn; 2], u64) + Sync) {
    // The flood's target is the coordinator, whose socket gets the junk; the others have their own sockets.
    let coordinator = start(port);
    let listener = listener_on(coordinator.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (near, far) = pair_at(connector_on(start(port)), &listener, address, &options());
    let queue_pairs = [near.qp_num(), far.qp_num()];
    let mut went = (0, Duration::ZERO);
    let sent = flood(
        |number| send(queue_pairs, number),
        || {
            let end = Instant::now() + FLOOD;
            went = exchange(&near, &far, &|| Instant::now() < end);
        },
    );
    let (count, longest) = went;
    println!("{what}: {sent} packets of it, {count} messages there and back, longest {longest:?}");
    assert!(sent > 1000, "{sent} packets are no flood");
    assert!(count > 10, "{count} messages got through");
    assert!(longest < GAP_MAX, "{longest:?}");
    // Afterwards new connections succeed at once.
    drop(pair_at(
        connector_on(coordinator),
        &listener,
        address,
        &options(),
    ));
}

/// A base transport header to a queue pair, and random bytes.
fn packet(qpn: u32, number: u64) -> Vec<u8> {
    let mut packet = vec![0x64, 0, 0xff, 0xff, 0];
    packet.extend_from_slice(&qpn.to_be_bytes()[1..]);
    packet.extend_from_slice(&number.to_be_bytes());
    packet.resize(280, number as u8);
    packet
}

#[test]
fn random_packets_to_queue_pair_1_do_not_stop_other_connections() {
    goes_on(free_port(), "to queue pair 1", |number| packet(1, number));
}

#[test]
fn random_packets_to_a_process_do_not_stop_its_connections() {
    // Every queue pair number of the first process's block in turn.
    goes_on(free_port(), "to a process", |number| {
        packet(0x01_0000 | (number & 0xffff) as u32, number)
    });
}

#[test]
fn packets_that_are_too_short_do_not_stop_other_connections() {
    goes_on(free_port(), "too short", |number| {
        vec![0x64; (number % 12) as usize]
    });
}
