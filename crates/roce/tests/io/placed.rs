//! Writes with immediate data whose bytes the sender copies to another process's memory. A record takes the receive.

use std::sync::Arc;

use portolan_provider::verbs::{
    Access, QpAttr, QpAttrMask, RemoteAddr, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use portolan_roce::io::{Tap, TappedPacket};

use crate::harness::*;
use crate::one_sided::Direct;

fn write(to: RemoteAddr, immediate: u32) -> SendOp {
    SendOp::RdmaWriteWithImm(to, immediate)
}

/// Posts a write whose bytes are taken during the call. Returns whether they were.
fn post_taking(end: &End, op: SendOp, bytes: &[u8]) -> bool {
    let wr = SendWr {
        wr_id: 9,
        op,
        data: SendData::Sges(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    end.qp.post_taking(&wr, bytes).unwrap()
}

#[test]
fn writes_of_every_size_arrive_whole_and_complete_at_both_ends() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let before = direct.carried_out()[0];
    let mut number = 0;
    for len in [1, 7, 64, 4096, 65_537, 500_000] {
        for at in [0, 3] {
            number += 1;
            a.memory.write(0, &pattern(number, len));
            b.memory.write(0, &vec![0x55; len + 32]);
            b.receive(number, b.sge(0, 0));
            a.post(1, write(b.remote(at), number as u32), a.sge(0, len));
            a.expect(1);
            let wc = b.expect(number);
            assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
            assert_eq!(wc.byte_len, len as u32);
            assert_eq!(wc.imm_data, Some(number as u32));
            assert!(b.memory.read(at, len) == pattern(number, len));
            assert_eq!(b.memory.read(0, at), vec![0x55; at]);
            assert_eq!(b.memory.read(at + len, 9), [0x55; 9]);
        }
    }
    assert_eq!(direct.carried_out()[0] - before, number);
}

#[test]
fn bytes_are_taken_during_the_call() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    for number in 0..100 {
        let mut bytes = pattern(number, 10_000);
        b.receive(number, b.sge(0, 0));
        assert!(post_taking(a, write(b.remote(50), 3), &bytes));
        bytes.fill(0);
        assert_eq!(b.expect(number).byte_len, 10_000);
        a.expect(9);
        assert!(b.memory.read(50, 10_000) == pattern(number, 10_000));
    }
    assert!(!post_taking(a, write(b.remote(0), 3), &[]), "no bytes");
    assert!(!post_taking(a, SendOp::Send, &[1]), "not a write");
    let beyond = RemoteAddr {
        addr: b.remote(0).addr + (1 << 20) - 7,
        ..b.remote(0)
    };
    assert!(!post_taking(a, write(beyond, 3), &[1; 8]));
}

#[test]
fn requests_of_all_kinds_keep_their_order() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let place = 100_000;
    for round in 0..300u64 {
        // Sends, writes, empty writes and long ones, several under way at once.
        let kinds: Vec<u64> = (0..6).map(|at| (round * 7 + at * at + at) % 5).collect();
        let mut bytes = 0;
        for (number, kind) in (0..).zip(&kinds) {
            let at = number as usize * 10_000;
            a.memory.write(at, &pattern(round * 6 + number, 9000));
            let immediate = (round * 6 + number) as u32;
            let to = b.remote(place + at);
            b.receive(number, b.sge(place + at, 4000));
            match kind {
                0 => a.post(1, SendOp::SendWithImm(immediate), a.sge(at, 300)),
                1 => a.post(1, write(to, immediate), a.sge(at, 9000)),
                2 => a.post(1, write(to, immediate), a.sge(at, 0)),
                3 => {
                    let source = a.memory.read(at, 9000);
                    if !post_taking(a, write(to, immediate), &source) {
                        a.post(1, write(to, immediate), a.sge(at, 9000));
                    }
                }
                _ => {
                    a.post(1, SendOp::RdmaRead(b.remote(0)), a.sge(900_000, 8));
                    a.post(1, write(to, immediate), a.sge(at, 100));
                    bytes += 1;
                }
            }
        }
        for (number, kind) in (0..).zip(&kinds) {
            let wc = b.expect(number);
            assert_eq!(wc.imm_data, Some((round * 6 + number) as u32));
            let len = [300, 9000, 0, 9000, 100][*kind as usize];
            assert_eq!(wc.byte_len as usize, len);
            let found = b.memory.read(place + number as usize * 10_000, len);
            assert!(found == pattern(round * 6 + number, 9000)[..len]);
        }
        for _ in 0..kinds.len() + bytes {
            assert_eq!(a.poll().status, WcStatus::Success);
        }
    }
}

#[test]
fn without_a_receive_a_write_waits_for_one() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    for taking in [false, true] {
        let bytes = pattern(3, 5000);
        a.memory.write(0, &bytes);
        match taking {
            true => assert!(post_taking(a, write(b.remote(0), 8), &bytes)),
            false => a.post(9, write(b.remote(0), 8), a.sge(0, 5000)),
        }
        until("the peer is not ready", || {
            let _ = b.try_poll();
            assert!(a.try_poll().is_none());
            a.qp.not_ready_for().unwrap().is_some()
        });
        b.receive(5, b.sge(0, 0));
        // Both ends must work for this, in one thread.
        let mut wcs = [None, None];
        until("both complete", || {
            for (wc, end) in wcs.iter_mut().zip([a, b]) {
                *wc = wc.or_else(|| end.try_poll());
            }
            wcs.iter().all(Option::is_some)
        });
        expect(wcs[0].unwrap(), 9);
        assert_eq!(expect(wcs[1].unwrap(), 5).byte_len, 5000);
        assert!(b.memory.read(0, 5000) == bytes);
    }
}

#[test]
fn a_write_over_the_memory_of_one_without_a_receive_comes_after_it() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    for round in 0..10u64 {
        let numbers = [round * 2 + 1, round * 2 + 2];
        b.receive(1, b.sge(100, 0));
        a.memory.write(0, &numbers[0].to_ne_bytes());
        a.memory.write(8, &numbers[1].to_ne_bytes());
        let pieces = [[a.sge(0, 8)], [a.sge(8, 8)]];
        // Together, so that the first cannot be acknowledged before the second is posted.
        let wrs = [0, 1].map(|at| SendWr {
            wr_id: 9,
            op: write(b.remote(0), numbers[at] as u32),
            data: SendData::Sges(&pieces[at]),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        });
        a.qp.post_sends(&wrs).unwrap();
        assert_eq!(b.expect(1).imm_data, Some(numbers[0] as u32));
        assert_eq!(b.memory.read(0, 8), numbers[0].to_ne_bytes());
        b.receive(2, b.sge(100, 0));
        let mut wcs = Vec::new();
        until("all complete", || {
            wcs.extend(a.try_poll());
            wcs.extend(b.try_poll());
            wcs.len() == 3
        });
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        assert_eq!(b.memory.read(0, 8), numbers[1].to_ne_bytes());
    }
}

#[test]
fn rights_taken_away_hold_when_the_call_returns() {
    for of_the_queue_pair in [false, true] {
        let direct = Direct::new();
        let (a, b) = (&direct.0.a, &direct.0.b);
        a.memory.write(0, &[9; 8]);
        let to = b.remote(0);
        b.receive(5, b.sge(0, 0));
        match of_the_queue_pair {
            true => {
                let attr = QpAttr {
                    access: Access::REMOTE_READ,
                    ..QpAttr::default()
                };
                b.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
            }
            false => b.mr.deregister().unwrap(),
        }
        assert!(!post_taking(a, write(to, 3), &[9; 8]));
        let expected = match of_the_queue_pair {
            true => WcStatus::RemInvReqErr,
            false => WcStatus::RemAccessErr,
        };
        assert_eq!(direct.status_of(write(to, 3), 8), expected);
        assert_ne!(b.memory.read(0, 8), [9; 8]);
    }
}

#[test]
fn while_either_end_has_a_tap_it_sees_packets() {
    #[derive(Debug)]
    struct Ignoring;
    impl Tap for Ignoring {
        fn packet(&self, _: &TappedPacket<'_>) {}
    }
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    for number in [0, 1] {
        direct.0.stacks[number].set_tap(Some(Arc::new(Ignoring)));
        let (before, sent) = (direct.carried_out()[0], direct.sent());
        b.receive(5, b.sge(0, 0));
        assert!(!post_taking(a, write(b.remote(0), 3), &[1; 8]));
        a.post(1, write(b.remote(0), 3), a.sge(0, 20_000));
        a.expect(1);
        assert_eq!(b.expect(5).byte_len, 20_000);
        assert_eq!(direct.carried_out()[0], before);
        assert!(direct.sent() >= sent + 5, "each packet is one");
        direct.0.stacks[number].set_tap(None);
        b.receive(6, b.sge(0, 0));
        a.post(1, write(b.remote(0), 3), a.sge(0, 20_000));
        a.expect(1);
        b.expect(6);
        assert_eq!(direct.carried_out()[0], before + 1);
    }
}
