//! One-sided requests for memory that the peer's program owns, which lies in no memory file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_provider::traits::Mr;
use portolan_provider::verbs::{Access, RemoteAddr, SendOp, WcStatus};
use portolan_roce::io::{Stack, Way};
use rustix::process::Signal;

use crate::harness::*;
use crate::process::{self, SHAPE};

/// Memory of the program on both sides.
const PROGRAMS: Shape = Shape {
    in_file: false,
    ..PATIENT
};
/// Longer than several packets.
const LEN: usize = 100_000;

/// Requests carried out without a packet.
fn carried_out(stack: &Stack) -> u64 {
    stack.counters().carried_out_in_memory
}

fn read(pair: &Pair, from: RemoteAddr, at: usize, len: usize) {
    pair.a.post(7, SendOp::RdmaRead(from), pair.a.sge(at, len));
    pair.a.expect(7);
}

/// Two ends whose reads are carried out in memory.
fn linked() -> Pair {
    let pair = Pair::new("127.0.0.1", PROGRAMS);
    until("reads are carried out in memory", || {
        read(&pair, pair.b.remote(0), 0, 8);
        carried_out(&pair.stacks[0]) > 0
    });
    assert_eq!(
        pair.stacks[0].way_of(pair.a.qp.qpn()),
        Some(Way::Memory),
        "this test needs process_vm_readv(2)"
    );
    pair
}

#[test]
fn reads_of_every_size_and_place_need_no_packet() {
    let pair = linked();
    let sent = || -> u64 {
        let sent = pair
            .stacks
            .iter()
            .map(|stack| stack.counters().sent_packets);
        sent.sum()
    };
    let (a, b, before, packets) = (&pair.a, &pair.b, carried_out(&pair.stacks[0]), sent());
    let mut reads = 0;
    for len in [1, 8, 100, 4096, 65_537, 300_000] {
        for at in [0, 1, 4095] {
            b.memory.write(0, &pattern(reads, len + at));
            a.memory.write(0, &vec![0x55; len + 32]);
            read(&pair, b.remote(at), 16, len);
            assert!(a.memory.read(16, len) == pattern(reads, len + at)[at..]);
            assert_eq!(a.memory.read(0, 16), [0x55; 16]);
            assert_eq!(a.memory.read(16 + len, 16), [0x55; 16]);
            reads += 1;
        }
    }
    // In pieces.
    let pieces = [a.sge(10, 7), a.sge(0, 0), a.sge(100, 33), a.sge(3, 1)];
    a.post_pieces(3, SendOp::RdmaRead(b.remote(50)), &pieces);
    a.expect(3);
    let found: Vec<u8> = [(10, 7), (100, 33), (3, 1)]
        .into_iter()
        .flat_map(|(at, len)| a.memory.read(at, len))
        .collect();
    assert_eq!(found, b.memory.read(50, 41));
    assert_eq!(carried_out(&pair.stacks[0]) - before, reads + 1);
    assert_eq!(sent(), packets);
}

#[test]
fn a_read_of_several_chunks_arrives_whole() {
    let shape = Shape {
        memory: 16 << 20,
        ..PROGRAMS
    };
    let pair = Pair::new("::1", shape);
    let len = (5 << 20) + 3;
    pair.b.memory.write(2, &pattern(3, len));
    until("a read is carried out in memory", || {
        pair.a.memory.write(0, &vec![0; len]);
        read(&pair, pair.b.remote(2), 0, len);
        assert!(pair.a.memory.read(0, len) == pattern(3, len));
        carried_out(&pair.stacks[0]) > 0
    });
}

#[test]
fn a_read_beyond_the_rights_ends_as_it_does_by_packets() {
    type Wrong = fn(&End) -> (RemoteAddr, Option<Arc<dyn Mr>>);
    let cases: [(&str, Wrong); 4] = [
        ("an unknown key", |b| {
            let RemoteAddr { addr, rkey } = b.remote(0);
            let rkey = rkey ^ 1;
            (RemoteAddr { addr, rkey }, None)
        }),
        ("beyond the end", |b| (b.remote(PROGRAMS.memory - 7), None)),
        ("a key for writing only", |b| {
            let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
            let mr = b.memory.register(&b.pd, access);
            let rkey = mr.rkey();
            (
                RemoteAddr {
                    rkey,
                    ..b.remote(0)
                },
                Some(mr),
            )
        }),
        ("another protection domain", |b| {
            let other = b.device.alloc_pd().unwrap();
            let mr = b.memory.register(&other, ALL_RIGHTS);
            let rkey = mr.rkey();
            (
                RemoteAddr {
                    rkey,
                    ..b.remote(0)
                },
                Some(mr),
            )
        }),
    ];
    for (name, wrong) in cases {
        let pair = linked();
        let (remote, _mr) = wrong(&pair.b);
        pair.a.post(1, SendOp::RdmaRead(remote), pair.a.sge(0, 8));
        assert_eq!(pair.a.poll().status, WcStatus::RemAccessErr, "{name}");
    }
}

#[test]
fn a_read_never_succeeds_with_bytes_that_were_written_after_the_deregistration() {
    for _ in 0..20 {
        let pair = linked();
        let (a, b) = (&pair.a, &pair.b);
        b.memory.write(0, &[1; LEN]);
        let (is_reading, remote) = (AtomicBool::new(false), b.remote(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until("it reads", || is_reading.load(Ordering::Acquire));
                b.mr.deregister().unwrap();
                b.memory.write(0, &[2; LEN]);
            });
            let refused = loop {
                a.post(1, SendOp::RdmaRead(remote), a.sge(0, LEN));
                let status = a.poll().status;
                if status != WcStatus::Success {
                    break status;
                }
                assert!(a.memory.read(0, LEN) == [1; LEN]);
                is_reading.store(true, Ordering::Release);
            };
            assert_eq!(refused, WcStatus::RemAccessErr);
        });
    }
}

#[test]
fn a_stopped_process_is_read_from() {
    let shape = Shape {
        in_file: false,
        ..SHAPE
    };
    let (stack, end, mut peer, _) = process::connect_stack("127.0.0.1", shape);
    let read = |from: RemoteAddr| {
        end.post(3, SendOp::RdmaRead(from), end.sge(20_000, 9000));
        end.expect(3);
    };
    let remote = process::program_memory(&mut peer);
    process::until_without_packet(&stack, &end, SendOp::RdmaRead(remote), 9000);
    peer.signal(Signal::STOP);
    for _ in 0..100 {
        end.memory.write(20_000, &[0; 9000]);
        read(remote);
        assert_eq!(end.memory.read(20_000, 9000), [0x77; 9000]);
    }
    peer.signal(Signal::CONT);
    peer.tell("spin 0");
    assert_eq!(peer.answer(), "saw 0");
}

#[test]
fn a_process_that_is_killed_while_it_is_read_from_ends_the_connection() {
    // 2 s in total, so that a slow but living peer is not considered dead.
    let shape = Shape {
        timeout: 16,
        in_file: false,
        ..SHAPE
    };
    for round in 0..5 {
        let (end, mut peer, _) = process::connect("127.0.0.1", shape);
        let remote = process::program_memory(&mut peer);
        std::thread::sleep(std::time::Duration::from_millis(50 + 7 * round));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(30));
                peer.kill();
            });
            let failed = loop {
                end.post(3, SendOp::RdmaRead(remote), end.sge(20_000, 9000));
                let status = end.poll().status;
                if status != WcStatus::Success {
                    break status;
                }
                assert_eq!(end.memory.read(20_000, 9000), [0x77; 9000]);
            };
            assert_eq!(failed, WcStatus::RetryExcErr);
        });
    }
}
