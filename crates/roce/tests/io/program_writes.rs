//! Writes to memory that the peer's program owns: this process copies the bytes itself, or, if it may not, the peer's
//! process copies long ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan_provider::verbs::{
    AsyncEvent, QpAttr, QpAttrMask, QpState, RemoteAddr, SendOp, Sge, WcStatus,
};
use portolan_roce::io::{Tap, TappedPacket, Way, WhyUnreadable};
use rustix::process::Signal;

use crate::harness::*;
use crate::process::{self, SHAPE};
use crate::refused::{refuse, without_and_with};

/// Memory of the program on both sides.
const PROGRAMS: Shape = Shape {
    memory: 8 << 20,
    in_file: false,
    ..PATIENT
};
const HALF: usize = 4 << 20;
/// Long enough to be copied.
const LEN: usize = 100_000;

fn carried_out(pair: &Pair) -> u64 {
    pair.stacks[0].counters().carried_out_in_memory
}

fn sent(pair: &Pair) -> u64 {
    let sent = pair
        .stacks
        .iter()
        .map(|stack| stack.counters().sent_packets);
    sent.sum()
}

fn write(pair: &Pair, to: usize, len: usize) {
    let (a, b) = (&pair.a, &pair.b);
    a.post(7, SendOp::RdmaWrite(b.remote(to)), a.sge(0, len));
    a.expect(7);
}

/// Runs a test with writes by this process, and with writes that the peer's process copies.
fn both_ways(test: fn()) {
    without_and_with(libc::SYS_process_vm_writev, test);
}

/// Two ends whose long writes are carried out in memory.
fn linked() -> Pair {
    let pair = Pair::new("127.0.0.1", PROGRAMS);
    until("writes are carried out in memory", || {
        write(&pair, 0, LEN);
        carried_out(&pair) > 0
    });
    pair
}

#[test]
fn a_short_write_that_the_program_waits_for_needs_no_packet_and_many_at_once_are_packets() {
    let pair = linked();
    let (a, b) = (&pair.a, &pair.b);
    let lens = [1, 2, 8, 64, 2500, 4095];
    // The first one may be a packet: the peer has not answered yet.
    write(&pair, 0, 1);
    let (before, packets) = (carried_out(&pair), sent(&pair));
    for len in lens {
        a.memory.write(0, &pattern(len as u64, len));
        write(&pair, 3, len);
        assert!(b.memory.read(3, len) == pattern(len as u64, len));
    }
    assert_eq!(carried_out(&pair) - before, lens.len() as u64);
    assert_eq!(sent(&pair), packets);
    a.memory.write(0, &pattern(9, 640));
    for at in (0..640).step_by(64) {
        a.post(7, SendOp::RdmaWrite(b.remote(at)), a.sge(at, 64));
    }
    for _ in 0..10 {
        a.expect(7);
    }
    assert!(b.memory.read(0, 640) == pattern(9, 640));
    // The first completes at once. The program has not taken its completion when it posts the others.
    assert_eq!(carried_out(&pair) - before, lens.len() as u64 + 1);
    assert!(sent(&pair) >= packets + 9);
}

#[test]
fn another_thread_sees_all_of_a_written_word_or_nothing() {
    let pair = linked();
    let (a, b) = (&pair.a, &pair.b);
    // The first aligned word.
    let at = b.memory.addr().wrapping_neg() as usize % size_of::<u64>();
    let addr = b.memory.addr() + at as u64;
    b.memory.write(at, &[0; 8]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let word = std::ptr::with_exposed_provenance::<u64>(addr as usize);
                // SAFETY: aligned, and in the end's memory.
                let word = unsafe { word.read_volatile() };
                assert!([0, u64::MAX].contains(&word), "{word:#x}");
            }
        });
        a.memory.write(0, &[0; 8]);
        write(&pair, at, 8);
        let before = carried_out(&pair);
        for number in 0..20_000u64 {
            let word = if number % 2 == 0 { u64::MAX } else { 0 };
            a.memory.write(0, &word.to_ne_bytes());
            write(&pair, at, 8);
        }
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap();
        assert_eq!(carried_out(&pair) - before, 20_000);
    });
}

#[test]
fn long_writes_of_every_size_and_place_need_no_packet() {
    both_ways(|| {
        let pair = linked();
        let (a, b, before, packets) = (&pair.a, &pair.b, carried_out(&pair), sent(&pair));
        let mut writes = 0;
        for len in [16_384, 65_537, 1 << 20, (3 << 20) + 5] {
            for at in [0, 1, 4095] {
                a.memory.write(0, &pattern(writes, len));
                b.memory.write(0, &vec![0x55; len + at + 16]);
                write(&pair, at, len);
                assert!(b.memory.read(at, len) == pattern(writes, len));
                assert_eq!(b.memory.read(0, at), vec![0x55; at]);
                assert_eq!(b.memory.read(at + len, 16), [0x55; 16]);
                writes += 1;
            }
        }
        let pieces = [
            a.sge(5, 70_000),
            a.sge(0, 0),
            a.sge(300_000, 1),
            a.sge(9, 50_000),
        ];
        a.post_pieces(3, SendOp::RdmaWrite(b.remote(50)), &pieces);
        a.expect(3);
        let expected: Vec<u8> = [(5, 70_000), (300_000, 1), (9, 50_000)]
            .into_iter()
            .flat_map(|(at, len)| a.memory.read(at, len))
            .collect();
        assert!(b.memory.read(50, expected.len()) == expected);
        assert_eq!(carried_out(&pair) - before, writes + 1);
        assert_eq!(sent(&pair), packets);
    });
}

#[test]
fn a_request_whose_later_part_has_too_many_pieces_for_one_copy_completes() {
    // More than one turn, so that the first part is copied before the second is refused.
    const FIRST: usize = 20 << 20;
    let shape = Shape {
        memory: 21 << 20,
        pieces: 32,
        ..PROGRAMS
    };
    let pair = Pair::new("127.0.0.1", shape);
    let (a, b) = (&pair.a, &pair.b);
    until("writes are carried out in memory", || {
        write(&pair, 0, LEN);
        carried_out(&pair) > 0
    });
    let small = |at: usize| (FIRST + 8192 * at, 4096);
    let places: Vec<(usize, usize)> = [(0, FIRST)].into_iter().chain((0..31).map(small)).collect();
    let pieces: Vec<Sge> = places.iter().map(|(at, len)| a.sge(*at, *len)).collect();
    let len = FIRST + 31 * 4096;
    a.memory.write(0, &pattern(1, 21 << 20));
    a.post_pieces(1, SendOp::RdmaWrite(b.remote(0)), &pieces);
    a.expect(1);
    let sent: Vec<u8> = places
        .iter()
        .flat_map(|(at, len)| a.memory.read(*at, *len))
        .collect();
    assert!(b.memory.read(0, len) == sent);
    b.memory.write(0, &pattern(2, len));
    a.post_pieces(2, SendOp::RdmaRead(b.remote(0)), &pieces);
    a.expect(2);
    let read: Vec<u8> = places
        .iter()
        .flat_map(|(at, len)| a.memory.read(*at, *len))
        .collect();
    assert!(read == pattern(2, len));
}

#[test]
fn what_is_posted_after_a_long_write_arrives_after_it() {
    both_ways(|| {
        let pair = linked();
        let (a, b) = (&pair.a, &pair.b);
        for round in 1..100u64 {
            b.receive(round, b.sge(HALF, 64));
            a.memory.write(0, &pattern(round, LEN));
            a.post(1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, LEN));
            a.post(2, SendOp::Send, a.sge(0, 64));
            a.post(3, SendOp::RdmaWrite(b.remote(LEN)), a.sge(0, LEN));
            a.post(4, SendOp::RdmaRead(b.remote(LEN)), a.sge(HALF, LEN));
            b.expect(round);
            assert!(b.memory.read(0, LEN) == pattern(round, LEN));
            for number in 1..=4 {
                a.expect(number);
            }
            assert!(a.memory.read(HALF, LEN) == pattern(round, LEN));
        }
    });
}

#[test]
fn both_ends_write_to_each_other_at_the_same_time() {
    both_ways(|| {
        let pair = linked();
        std::thread::scope(|scope| {
            for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
                scope.spawn(move || {
                    for round in 0..100u64 {
                        from.memory.write(0, &pattern(round, LEN));
                        from.post(1, SendOp::RdmaWrite(to.remote(HALF)), from.sge(0, LEN));
                        from.expect(1);
                        assert!(to.memory.read(HALF, LEN) == pattern(round, LEN));
                    }
                });
            }
        });
    });
}

#[test]
fn a_long_write_beyond_the_rights_ends_as_it_does_by_packets() {
    both_ways(|| {
        let wrong: [fn(&End) -> RemoteAddr; 2] = [
            |b| {
                let RemoteAddr { addr, rkey } = b.remote(0);
                let rkey = rkey ^ 1;
                RemoteAddr { addr, rkey }
            },
            |b| b.remote(PROGRAMS.memory - LEN + 1),
        ];
        for wrong in wrong {
            let pair = linked();
            let (a, b) = (&pair.a, &pair.b);
            a.memory.write(0, &[9; LEN]);
            b.memory.write(0, &vec![1; PROGRAMS.memory]);
            a.post(1, SendOp::RdmaWrite(wrong(b)), a.sge(0, LEN));
            assert_eq!(a.poll().status, WcStatus::RemAccessErr);
            assert!(b.memory.read(0, PROGRAMS.memory) == vec![1; PROGRAMS.memory]);
            until("the event", || match b.device.take_async_event().unwrap() {
                Some(event) => matches!(event, AsyncEvent::QpAccessErr(_)),
                None => false,
            });
        }
    });
}

#[test]
fn memory_is_not_written_to_after_its_deregistration_returns() {
    both_ways(|| {
        for _ in 0..20 {
            let pair = linked();
            let (a, b) = (&pair.a, &pair.b);
            a.memory.write(0, &vec![1; 1 << 20]);
            let (is_writing, remote) = (AtomicBool::new(false), b.remote(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    until("it writes", || is_writing.load(Ordering::Acquire));
                    b.mr.deregister().unwrap();
                    b.memory.write(0, &vec![7; 1 << 20]);
                });
                let refused = loop {
                    a.post(1, SendOp::RdmaWrite(remote), a.sge(0, 1 << 20));
                    let status = a.poll().status;
                    is_writing.store(true, Ordering::Release);
                    if status != WcStatus::Success {
                        break status;
                    }
                };
                assert_eq!(refused, WcStatus::RemAccessErr);
            });
            assert!(b.memory.read(0, 1 << 20) == vec![7; 1 << 20]);
        }
    });
}

#[test]
fn a_queue_pair_that_fails_while_the_peer_copies_flushes_its_requests() {
    both_ways(|| {
        for _ in 0..50 {
            let pair = linked();
            let a = &pair.a;
            for number in 0..3 {
                a.post(
                    number,
                    SendOp::RdmaWrite(pair.b.remote(0)),
                    a.sge(0, 1 << 20),
                );
            }
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            a.qp.modify(&attr, QpAttrMask::STATE).unwrap();
            for number in 0..3 {
                let wc = a.poll();
                assert_eq!(wc.wr_id, number);
                assert!([WcStatus::Success, WcStatus::WrFlushErr].contains(&wc.status));
            }
        }
    });
}

#[test]
fn a_tap_of_the_target_sees_packets() {
    both_ways(|| {
        #[derive(Debug)]
        struct Counting;
        impl Tap for Counting {
            fn packet(&self, _: &TappedPacket<'_>) {}
        }
        let pair = linked();
        pair.stacks[1].set_tap(Some(Arc::new(Counting)));
        let (before, packets) = (carried_out(&pair), sent(&pair));
        write(&pair, 0, LEN);
        assert_eq!(carried_out(&pair), before);
        assert!(sent(&pair) > packets);
        pair.stacks[1].set_tap(None);
        write(&pair, 0, LEN);
        assert_eq!(carried_out(&pair), before + 1);
    });
}

/// 1.1 s in total.
const BRIEF: Shape = Shape {
    timeout: 15,
    in_file: false,
    ..SHAPE
};

#[test]
fn a_stopped_target_is_written_to() {
    let (stack, end, mut peer, _) = process::connect_stack("127.0.0.1", BRIEF);
    let remote = process::program_memory(&mut peer);
    process::until_without_packet(&stack, &end, SendOp::RdmaWrite(remote), LEN);
    peer.signal(Signal::STOP);
    for round in 0..100 {
        end.memory.write(0, &pattern(round, LEN));
        end.post(3, SendOp::RdmaWrite(remote), end.sge(0, LEN));
        end.expect(3);
        end.post(4, SendOp::RdmaRead(remote), end.sge(200_000, LEN));
        end.expect(4);
        assert!(end.memory.read(200_000, LEN) == pattern(round, LEN));
    }
    peer.signal(Signal::CONT);
}

#[test]
fn a_stopped_target_that_copies_itself_and_a_killed_one_end_the_connection() {
    for signal in [Signal::STOP, Signal::KILL] {
        let failing = std::thread::spawn(move || {
            if signal == Signal::STOP {
                refuse(libc::SYS_process_vm_writev, libc::EPERM);
            }
            let (end, mut peer, _) = process::connect("127.0.0.1", BRIEF);
            let remote = process::program_memory(&mut peer);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    peer.signal(signal);
                });
                loop {
                    end.post(3, SendOp::RdmaWrite(remote), end.sge(0, LEN));
                    let status = end.poll().status;
                    if status != WcStatus::Success {
                        break status;
                    }
                }
            })
        });
        assert_eq!(failing.join().unwrap(), WcStatus::RetryExcErr);
    }
}

#[test]
fn a_target_that_was_stopped_for_a_moment_is_written_to_once_it_goes_on() {
    let shape = Shape {
        in_file: false,
        ..SHAPE
    };
    let (end, mut peer, _) = process::connect("127.0.0.1", shape);
    let remote = process::program_memory(&mut peer);
    for round in 0..3 {
        peer.signal(Signal::STOP);
        end.memory.write(0, &pattern(round, LEN));
        end.post(3, SendOp::RdmaWrite(remote), end.sge(0, LEN));
        // Longer than it waits for an answer.
        std::thread::sleep(Duration::from_millis(1200));
        peer.signal(Signal::CONT);
        end.expect(3);
        end.post(4, SendOp::RdmaRead(remote), end.sge(500_000, LEN));
        end.expect(4);
        assert!(end.memory.read(500_000, LEN) == pattern(round, LEN));
    }
}

#[test]
fn a_target_that_copies_itself_does_not_read_memory_after_its_deregistration() {
    let test = std::thread::spawn(|| {
        refuse(libc::SYS_process_vm_writev, libc::EPERM);
        let shape = Shape {
            in_file: false,
            ..SHAPE
        };
        let (stack, end, mut peer, _) = process::connect_stack("127.0.0.1", shape);
        let remote = process::program_memory(&mut peer);
        end.memory.write(0, &[1; LEN]);
        process::until_without_packet(&stack, &end, SendOp::RdmaWrite(remote), LEN);
        peer.signal(Signal::STOP);
        end.post(3, SendOp::RdmaWrite(remote), end.sge(0, LEN));
        end.mr.deregister().unwrap();
        end.memory.write(0, &[9; LEN]);
        peer.signal(Signal::CONT);
        assert_eq!(end.poll().status, WcStatus::LocProtErr);
        peer.tell("owned-has 9");
        assert_eq!(peer.answer(), "false");
    });
    test.join().unwrap();
}

#[test]
fn memory_is_taken_at_once_from_an_initiator_that_is_stopped_or_killed() {
    for signal in [Signal::STOP, Signal::KILL] {
        let (end, mut peer, _) = process::connect("127.0.0.1", BRIEF);
        let mine = end.remote(0);
        peer.tell(&format!("stamp {}", mine.addr));
        peer.tell(&mine.rkey.to_string());
        assert_eq!(peer.answer(), "stamping");
        until("it writes", || end.memory.byte(0) == 0xee);
        std::thread::sleep(Duration::from_millis(100));
        peer.signal(signal);
        let began = Instant::now();
        end.mr.deregister().unwrap();
        assert!(began.elapsed() < PATIENCE, "it waits for nobody");
        end.memory.write(0, &vec![1; 1 << 19]);
        if signal == Signal::STOP {
            peer.signal(Signal::CONT);
            assert_eq!(peer.answer(), "refused");
        }
        assert!(end.memory.read(0, 1 << 19) == vec![1; 1 << 19]);
    }
}

#[test]
fn without_the_calls_packets_carry_everything_and_the_way_tells_why() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let refusing = std::thread::spawn(move || {
            // Before the stacks: their threads refuse the calls, too.
            refuse(libc::SYS_process_vm_writev, errno);
            refuse(libc::SYS_process_vm_readv, errno);
            let pair = Pair::new("127.0.0.1", PROGRAMS);
            let (a, b) = (&pair.a, &pair.b);
            let why = Some(Way::Rings(WhyUnreadable::NoSystemCall));
            until("the way tells why", || {
                write(&pair, 0, LEN);
                pair.stacks[0].way_of(a.qp.qpn()) == why
            });
            for round in 0..20 {
                a.memory.write(0, &pattern(round, LEN));
                write(&pair, 77, LEN);
                assert!(b.memory.read(77, LEN) == pattern(round, LEN));
                a.post(8, SendOp::RdmaRead(b.remote(77)), a.sge(HALF, LEN));
                a.expect(8);
                assert!(a.memory.read(HALF, LEN) == pattern(round, LEN));
            }
            assert_eq!(carried_out(&pair), 0);
        });
        refusing.join().unwrap();
    }
}
