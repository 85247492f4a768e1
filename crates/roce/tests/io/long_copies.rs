//! One-sided requests in another process's memory that are so long that they are copied in turns.

use std::time::{Duration, Instant};

use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, SendOp, WcStatus, WorkCompletion};
use rustix::process::Signal;

use crate::harness::*;
use crate::one_sided::Direct;
use crate::process::{self, Peer};

/// More than a few turns, and no multiple of anything.
const LEN: usize = (80 << 20) + 3;
const LONG: Shape = Shape {
    memory: 81 << 20,
    ..PATIENT
};
/// Gives up a peer after a second.
const BRIEF: Shape = Shape {
    timeout: 15,
    ..LONG
};
/// Rounds in which a moment must be met at least once.
const ROUNDS: u64 = 100;

/// Bytes that depend on their offset, made fast.
fn long_pattern(seed: u64, len: usize) -> Vec<u8> {
    let one = pattern(seed, 1 << 20);
    let mut bytes = Vec::with_capacity(len + one.len());
    while bytes.len() < len {
        let at = bytes.len();
        bytes.extend_from_slice(&one);
        bytes[at..at + 8].copy_from_slice(&(at as u64 ^ seed).to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn direct() -> Direct {
    Direct::of(Pair::new("127.0.0.1", LONG))
}

#[test]
fn requests_of_many_turns_need_no_packet_whether_their_owner_polls_or_sleeps() {
    let direct = direct();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let nexts: [fn(&End) -> WorkCompletion; 2] = [End::poll, End::wait];
    for (seed, next) in (1..).zip(nexts) {
        let (before, sent) = (direct.carried_out()[0], direct.sent());
        a.memory.write(0, &long_pattern(seed, LEN));
        a.post(1, SendOp::RdmaWrite(b.remote(1)), a.sge(0, LEN));
        expect(next(a), 1);
        assert!(b.memory.read(1, LEN) == long_pattern(seed, LEN));
        let bytes = long_pattern(seed + 10, LEN);
        b.memory.write(5, &bytes);
        // In three pieces, the second of which is the start of the memory.
        let (first, second) = (LEN / 3, LEN / 2);
        let pieces = [
            a.sge(second, first),
            a.sge(0, second),
            a.sge(first + second, LEN - first - second),
        ];
        a.post_pieces(2, SendOp::RdmaRead(b.remote(5)), &pieces);
        expect(next(a), 2);
        assert!(a.memory.read(second, first) == bytes[..first]);
        assert!(a.memory.read(0, second) == bytes[first..first + second]);
        assert!(a.memory.read(first + second, LEN - first - second) == bytes[first + second..]);
        assert_eq!(direct.carried_out()[0] - before, 2);
        assert_eq!(direct.sent(), sent);
    }
}

#[test]
fn writes_with_immediate_data_of_many_turns_are_copied_whoever_waits() {
    let direct = direct();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let nexts: [fn(&End) -> WorkCompletion; 2] = [End::poll, End::wait];
    for (seed, next) in (1..).zip(nexts) {
        let before = direct.carried_out()[0];
        a.memory.write(0, &long_pattern(seed, LEN));
        b.receive(3, b.sge(0, 0));
        let op = SendOp::RdmaWriteWithImm(b.remote(1), 7);
        a.post(1, op, a.sge(0, LEN));
        expect(next(a), 1);
        let wc = b.expect(3);
        assert_eq!((wc.byte_len, wc.imm_data), (LEN as u32, Some(7)));
        assert!(b.memory.read(1, LEN) == long_pattern(seed, LEN));
        assert!(direct.carried_out()[0] - before >= 1);
    }
}

#[test]
fn what_is_posted_after_a_long_copy_arrives_after_it() {
    let direct = direct();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let last = LEN - 1;
    for round in 1..=4u8 {
        b.receive(9, b.sge(LEN, 1));
        b.receive(10, b.sge(0, 0));
        a.memory.write(0, &[round; 8]);
        a.memory.write(last, &[round]);
        a.post(1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, LEN));
        a.post(2, SendOp::Send, a.sge(0, 1));
        a.post(3, SendOp::RdmaWrite(b.remote(LEN + 8)), a.sge(0, 1));
        a.post(4, SendOp::RdmaRead(b.remote(0)), a.sge(0, LEN));
        a.post(5, SendOp::RdmaWriteWithImm(b.remote(0), 1), a.sge(0, LEN));
        b.expect(9);
        assert_eq!(b.memory.byte(last), round);
        for number in 1..=5 {
            a.expect(number);
        }
        b.expect(10);
        assert_eq!(b.memory.byte(LEN + 8), round);
    }
}

#[test]
fn a_queue_pair_that_fails_between_two_turns_copies_no_further() {
    for with_immediate in [false, true] {
        let is_met = (0..ROUNDS).any(|_| {
            let direct = direct();
            let (a, b) = (&direct.0.a, &direct.0.b);
            a.memory.write(0, &[0xee]);
            a.memory.write(LEN - 1, &[0xee]);
            b.receive(3, b.sge(0, 0));
            let op = match with_immediate {
                true => SendOp::RdmaWriteWithImm(b.remote(0), 1),
                false => SendOp::RdmaWrite(b.remote(0)),
            };
            a.post(1, op, a.sge(0, LEN));
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            a.qp.modify(&attr, QpAttrMask::STATE).unwrap();
            let is_met = b.memory.byte(LEN - 1) == 0;
            let expected = match is_met {
                true => WcStatus::WrFlushErr,
                false => WcStatus::Success,
            };
            assert_eq!(a.poll().status, expected);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(b.memory.byte(LEN - 1) == 0, is_met);
            assert_eq!(b.memory.byte(0), 0xee, "the first turn was in the call");
            is_met
        });
        assert!(is_met, "no turn has ended before the copy did");
    }
}

#[test]
fn a_write_is_done_after_its_queue_pair_was_paused_and_got_another_path_between_two_turns() {
    let direct = direct();
    let (a, b) = (&direct.0.a, &direct.0.b);
    a.memory.write(0, &long_pattern(1, LEN));
    a.post(1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, LEN));
    let go = |state, mask| {
        let attr = QpAttr {
            state,
            ..a.qp.query().unwrap().0
        };
        a.qp.modify(&attr, mask).unwrap();
    };
    go(QpState::Sqd, QpAttrMask::STATE);
    go(QpState::Sqd, QpAttrMask::AV | QpAttrMask::TIMEOUT);
    go(QpState::Rts, QpAttrMask::STATE);
    a.expect(1);
    assert!(b.memory.read(0, LEN) == long_pattern(1, LEN));
}

/// Deregisters the end's memory when the peer is in the middle of a copy into it. Returns `false` if the copy was faster.
fn deregister_in_the_middle(end: &End, between: impl FnOnce()) -> bool {
    until("it writes", || end.memory.byte(0) == 0xee);
    between();
    let began = Instant::now();
    end.mr.deregister().unwrap();
    assert!(
        began.elapsed() < PATIENCE / 3,
        "it waits for the end of the copy"
    );
    end.memory.byte(LEN - 1) != 0xee
}

#[test]
fn a_region_deregistered_in_the_middle_of_a_copy_is_left_alone() {
    for with_immediate in [false, true] {
        let is_met = (0..ROUNDS).any(|_| {
            let direct = direct();
            let (a, b) = (&direct.0.a, &direct.0.b);
            a.memory.write(0, &vec![0xee; LEN]);
            b.receive(3, b.sge(0, 0));
            let remote = b.remote(0);
            let op = match with_immediate {
                true => SendOp::RdmaWriteWithImm(remote, 1),
                false => SendOp::RdmaWrite(remote),
            };
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    a.post(1, op, a.sge(0, LEN));
                    // Both ends may poll the same progress.
                    a.poll().status
                });
                let is_met = deregister_in_the_middle(b, || {});
                b.memory.write(0, &vec![1; LEN]);
                let status = writer.join().unwrap();
                if is_met {
                    assert_eq!(status, WcStatus::RemAccessErr);
                }
                assert!(b.memory.read(0, LEN) == vec![1; LEN]);
                is_met
            })
        });
        assert!(is_met, "every copy was faster than its withdrawal");
    }
}

/// A peer process that writes to the end over and over.
fn stamping() -> (End, Peer) {
    let (end, mut peer, _) = process::connect("127.0.0.1", BRIEF);
    let mine = end.remote(0);
    peer.tell(&format!("stamp {}", mine.addr));
    peer.tell(&mine.rkey.to_string());
    assert_eq!(peer.answer(), "stamping");
    (end, peer)
}

#[test]
fn memory_is_taken_at_once_from_a_process_that_is_stopped_or_killed_in_the_middle() {
    for signal in [Signal::STOP, Signal::KILL] {
        let (end, mut peer) = stamping();
        deregister_in_the_middle(&end, || peer.signal(signal));
        let is_held = end.memory.pages.as_ref().unwrap().is_held();
        if !is_held {
            end.memory.write(0, &vec![1; LEN]);
        }
        if signal == Signal::STOP {
            peer.signal(Signal::CONT);
            assert_eq!(peer.answer(), "refused");
        }
        if !is_held {
            assert!(end.memory.read(0, LEN) == vec![1; LEN]);
        }
    }
}

#[test]
fn a_target_that_is_stopped_in_the_middle_is_written_to_the_end() {
    let (stack, end, peer, remote) = process::connect_stack("127.0.0.1", LONG);
    process::until_without_packet(&stack, &end, SendOp::RdmaWrite(remote), 8);
    for round in 0..3u8 {
        end.memory.write(0, &vec![round; LEN]);
        end.post(1, SendOp::RdmaWrite(remote), end.sge(0, LEN));
        peer.signal(Signal::STOP);
        end.expect(1);
        end.memory.write(0, &vec![0xff; LEN]);
        end.post(2, SendOp::RdmaRead(remote), end.sge(0, LEN));
        end.expect(2);
        assert!(end.memory.read(0, LEN) == vec![round; LEN]);
        peer.signal(Signal::CONT);
    }
}

#[test]
fn a_target_that_is_killed_in_the_middle_ends_the_connection() {
    let (stack, end, mut peer, remote) = process::connect_stack("127.0.0.1", BRIEF);
    process::until_without_packet(&stack, &end, SendOp::RdmaWrite(remote), 8);
    end.post(1, SendOp::RdmaWrite(remote), end.sge(0, LEN));
    peer.kill();
    let failed = loop {
        let status = end.poll().status;
        if status != WcStatus::Success {
            break status;
        }
        end.post(1, SendOp::RdmaWrite(remote), end.sge(0, LEN));
    };
    assert_eq!(failed, WcStatus::RetryExcErr);
}
