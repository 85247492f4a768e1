//! Packets taken in their short form have the effect that the packets have, and everything else is left to packets.

use std::time::Duration;

use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, SendOp, WcStatus};
use portolan_roce::engine::{CompactAck, CompactAtomicAck, CompactSend, PdId};
use portolan_wire::Psn;

use crate::harness::*;

const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;

fn send(psn: u32, len: u32) -> CompactSend {
    CompactSend {
        psn: Psn::new(psn),
        immediate: None,
        solicited: false,
        ack_request: true,
        len,
    }
}

/// A pair whose right end has receives of 64 bytes.
fn pair(receives: u64) -> Pair {
    let mut pair = Pair::new(Options::default());
    for wr_id in 0..receives {
        let target = piece(pair.right(), TARGET, 64);
        post_recv(pair.right(), wr_id, &[target]);
    }
    pair
}

#[test]
fn the_results_are_those_of_packets_whatever_is_sent_and_lost() {
    for lost_permille in [0, 100] {
        let results = [false, true].map(|sends_first| {
            let mut pair = Pair::new(Options {
                psn: 0xff_fff0,
                sends_first,
                seed: 7,
                ..Options::default()
            });
            pair.network.faults.lost_permille = lost_permille;
            pair.network.faults.repeated_permille = lost_permille;
            pair.left().fill(SOURCE, 4096, 3);
            for wr_id in 0..60 {
                let offset = TARGET + wr_id * 4096;
                let target = piece(pair.right(), offset, 4096);
                post_recv(pair.right(), wr_id, &[target]);
                let length = [0, 1, 64, 1024, 3000][wr_id as usize % 5];
                let source = piece(pair.left(), SOURCE, length);
                let op = match wr_id % 7 {
                    3 => SendOp::SendWithImm(wr_id as u32),
                    5 => SendOp::RdmaWriteWithImm(remote(pair.right(), offset), 9),
                    _ => SendOp::Send,
                };
                post(pair.left(), wr_id, op, &[source]);
            }
            pair.run();
            let taken = pair.right().taken;
            assert_eq!(taken > 10, sends_first);
            assert_eq!(pair.left().taken > 0, sends_first);
            let sends = sends(pair.left());
            let right = pair.right();
            (sends, right.receives.clone(), right.ram.clone())
        });
        assert_eq!(results[0].0.len(), 60);
        assert!(results[0] == results[1]);
    }
}

#[test]
fn a_send_is_taken_only_if_it_is_next_and_its_place_is_known() {
    type Prepare = fn(&mut Pair);
    let none: Prepare = |_| {};
    for (what, psn, len, receives, prepare) in [
        ("a later one", 101, 64, 1, none),
        ("an earlier one", 99, 64, 1, none),
        ("no receive", 100, 64, 0, none),
        ("no receive for an empty one", 100, 0, 0, none),
        ("too long for the receive", 100, 65, 1, none),
        ("longer than the path MTU", 100, 1025, 1, none),
        ("two elements", 100, 64, 0, |pair: &mut Pair| {
            let halves = [
                piece(pair.right(), TARGET, 32),
                piece(pair.right(), TARGET, 32),
            ];
            post_recv(pair.right(), 1, &halves);
        }),
        ("memory of another domain", 100, 64, 0, |pair| {
            let right = pair.right();
            right.register(7, TARGET, 64, all_rights(), PdId(1));
            let mut target = piece(right, TARGET, 64);
            target.lkey = 7;
            post_recv(right, 1, &[target]);
        }),
        ("an error", 100, 64, 1, |pair| {
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            pair.right().qp.modify(&attr, QpAttrMask::STATE).unwrap();
        }),
    ] {
        let mut pair = pair(receives);
        prepare(&mut pair);
        let right = pair.right();
        let before = *right.qp.counters();
        assert_eq!(
            right.qp.take_send(&right.memory, &send(psn, len)),
            None,
            "{what}"
        );
        assert_eq!(*right.qp.counters(), before, "{what}");
        assert_eq!(right.qp.poll_acknowledgement(), None, "{what}");
    }
    let mut pair = pair(1);
    let right = pair.right();
    let place = right
        .qp
        .take_send(&right.memory, &send(100, 64))
        .expect("a place");
    assert_eq!((place.addr, place.len), (right.base + TARGET, 64));
    let (_, aeth) = right.qp.poll_acknowledgement().expect("an answer");
    assert_eq!(aeth.msn, 1);
    right.drain();
    assert_eq!(right.receives.len(), 1);
    assert_eq!(right.receives[0].0.status, WcStatus::Success);
}

#[test]
fn a_message_in_progress_keeps_its_receive() {
    let mut pair = pair(0);
    for wr_id in 0..2 {
        let target = piece(pair.right(), TARGET, 4096);
        post_recv(pair.right(), wr_id, &[target]);
    }
    let source = piece(pair.left(), SOURCE, 3000);
    post(pair.left(), 1, SendOp::Send, &[source]);
    let first = pair.left().next_packet(Duration::ZERO).expect("a packet");
    let right = pair.right();
    right.receive(Duration::ZERO, &first);
    let placed = right.placements;
    assert_eq!(right.qp.take_send(&right.memory, &send(101, 64)), None);
    assert_eq!(right.placements, placed);
    assert!(right.receives.is_empty());
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_completes_nothing() {
    let mut pair = pair(0);
    let source = piece(pair.left(), SOURCE, 64);
    let left = pair.left();
    post(left, 1, SendOp::Send, &[source]);
    while left.next_packet(Duration::ZERO).is_some() {}
    for psn in [101, 99, 0x80_0064] {
        let ack = CompactAck {
            psn: Psn::new(psn),
            msn: 1,
        };
        let (qp, memory) = (&mut left.qp, &left.memory);
        assert!(qp.take_acknowledgement(Duration::ZERO, memory, &ack));
        assert_eq!(qp.poll_completion(), None);
    }
    let ack = CompactAck {
        psn: Psn::new(100),
        msn: 1,
    };
    let (qp, memory) = (&mut left.qp, &left.memory);
    assert!(qp.take_acknowledgement(Duration::ZERO, memory, &ack));
    assert!(qp.has_results());
    left.drain();
    assert_eq!(sends(left), [(1, WcStatus::Success)]);
}

#[test]
fn after_a_wrong_answer_without_a_packet_the_peer_is_answered_no_more() {
    let mut pair = Pair::new(Options::default());
    let now = pair.now;
    let (there, here) = (remote(pair.right(), TARGET), remote(pair.left(), TARGET));
    let sges = [piece(pair.left(), SOURCE, 8)];
    post(pair.left(), 1, SendOp::RdmaWrite(there), &sges);
    let request = pair.left().next_packet(now).unwrap();
    let psn = parse(&request).bth().psn;
    // Its acknowledgement is queued.
    let sges = [piece(pair.right(), SOURCE, 8)];
    post(pair.right(), 2, SendOp::RdmaWrite(here), &sges);
    let bytes = pair.right().next_packet(now).unwrap();
    let left = pair.left();
    left.receive(now, &bytes);
    let answer = CompactAtomicAck { psn, msn: 1 };
    assert!(left.qp.take_atomic_ack(now, &left.memory, &answer, 7));
    left.drain();
    assert_eq!(sends(left), [(1, WcStatus::BadRespErr)]);
    assert_eq!(left.qp.poll_acknowledgement(), None);
    assert!(left.next_packet(now).is_none());
}
