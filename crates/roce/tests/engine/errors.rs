//! Failing work: the error at each side, and the fate of other work.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, AsyncEvent, Denial, QpState, RefusedMemory, RemoteAddr, SendOp, Sge, WcStatus,
};
use portolan_roce::engine::{FlowConfig, PdId};

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const TARGET: u64 = 0x8_0000;

/// The key of another region, with restricted rights.
const OTHER_KEY: u32 = 0x2000_0002;

#[test]
fn a_message_longer_than_its_receive_is_an_error_on_both_sides() {
    for len in [101, 1024, 5000] {
        let mut pair = Pair::new(Options::default());
        let target = piece(pair.right(), TARGET, 100);
        post_recv(pair.right(), 1, &[target]);
        post_recv(pair.right(), 2, &[target]);
        let source = piece(pair.left(), 0, len);
        post(pair.left(), 1, SendOp::Send, &[source]);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, WcStatus::RemInvReqErr)]);
        assert_eq!(
            receives(pair.right()),
            [(1, WcStatus::LocLenErr), (2, FLUSHED)]
        );
        assert_eq!(pair.states(), [QpState::Err; 2]);
        assert_eq!(pair.right().bytes(TARGET, 5000), [0; 5000]);
        assert!(pair.right().events.is_empty(), "the completion reports it");
    }
}

#[test]
fn keys_ranges_rights_and_domains_of_the_peer_are_checked() {
    let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let write_only = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// The region under the other key (rights, and distance of its domain), the offset at which the peer
    /// starts, and whether it writes.
    type Case = (&'static str, Option<(Access, u32)>, u64, bool);
    let cases: [Case; 8] = [
        ("unknown key", None, 0, true),
        (
            "before the region",
            Some((all_rights(), 0)),
            0u64.wrapping_sub(1),
            true,
        ),
        (
            "beyond the region",
            Some((all_rights(), 0)),
            4096 - 1999,
            true,
        ),
        ("address wraps", Some((all_rights(), 0)), u64::MAX / 2, true),
        ("no right to write", Some((read_only, 0)), 0, true),
        ("no right to read", Some((write_only, 0)), 0, false),
        (
            "local rights only",
            Some((Access::LOCAL_WRITE, 0)),
            0,
            false,
        ),
        ("other protection domain", Some((all_rights(), 1)), 0, true),
    ];
    for (what, region, offset, is_write) in cases {
        let mut pair = Pair::new(Options::default());
        if let Some((access, domain)) = region {
            let pd = PdId(pair.right().pd().0 + domain);
            pair.right().register(OTHER_KEY, TARGET, 4096, access, pd);
        }
        let addr = (pair.right().base + TARGET).wrapping_add(offset);
        let place = RemoteAddr {
            addr,
            rkey: OTHER_KEY,
        };
        let op = if is_write {
            SendOp::RdmaWrite(place)
        } else {
            SendOp::RdmaRead(place)
        };
        let local = piece(pair.left(), 0, 2000);
        pair.left().fill(0, 2000, 1);
        post(pair.left(), 1, op, &[local]);
        post(pair.left(), 2, SendOp::Send, &[]);
        pair.run();
        let failed = [(1, WcStatus::RemAccessErr), (2, FLUSHED)];
        assert_eq!(sends(pair.left()), failed, "{what}");
        assert_eq!(pair.states(), [QpState::Err; 2], "{what}");
        let qpn = pair.right().qp.qpn();
        assert_eq!(pair.right().events, [AsyncEvent::QpAccessErr(qpn)]);
        let refusal = pair.right().qp.refusal().unwrap();
        assert_eq!(refusal.status, WcStatus::RemAccessErr, "{what}");
        let named = refusal.memory.unwrap();
        let (length, rkey) = (2000, OTHER_KEY);
        assert_eq!(named, RefusedMemory { addr, length, rkey }, "{what}");
        let range = Denial::Range {
            addr: pair.right().base + TARGET,
            length: 4096,
        };
        let denial = match region {
            None => Denial::NoKey,
            Some((_, 1)) => Denial::Elsewhere,
            Some(_) if offset > 4096 - 2000 => range,
            Some(_) => Denial::Rights,
        };
        assert_eq!(refusal.denial, Some(denial), "{what}: {refusal}");
        assert_eq!(pair.left().qp.refusal(), None, "{what}");
        assert_eq!(pair.right().placements, 0, "{what}");
    }
}

#[test]
fn the_last_byte_of_a_region_may_be_used() {
    let mut pair = Pair::new(Options::default());
    let pd = pair.right().pd();
    pair.right()
        .register(OTHER_KEY, TARGET, 4096, all_rights(), pd);
    let addr = pair.right().base + TARGET + 96;
    let local = piece(pair.left(), 0, 4000);
    post(
        pair.left(),
        1,
        SendOp::RdmaWrite(RemoteAddr {
            addr,
            rkey: OTHER_KEY,
        }),
        &[local],
    );
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn an_operation_that_the_queue_pair_does_not_allow_is_an_invalid_request() {
    let cases = [(Access::REMOTE_READ, true), (Access::REMOTE_WRITE, false)];
    for (access, is_write) in cases {
        let mut pair = Pair::new(Options {
            access,
            ..Options::default()
        });
        let place = remote(pair.right(), TARGET);
        let op = if is_write {
            SendOp::RdmaWrite(place)
        } else {
            SendOp::RdmaRead(place)
        };
        let local = piece(pair.left(), 0, 2000);
        post(pair.left(), 1, op, &[local]);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, WcStatus::RemInvReqErr)]);
        let qpn = pair.right().qp.qpn();
        assert_eq!(pair.right().events, [AsyncEvent::QpReqErr(qpn)]);
    }
}

#[test]
fn memory_of_the_sender_is_checked_before_anything_is_sent() {
    let other_domain = |pair: &mut Pair| {
        let pd = PdId(99);
        pair.left().register(OTHER_KEY, 0, 4096, all_rights(), pd);
        Sge {
            lkey: OTHER_KEY,
            ..piece(pair.left(), 0, 100)
        }
    };
    let unknown_key = |pair: &mut Pair| Sge {
        lkey: 5,
        ..piece(pair.left(), 0, 100)
    };
    let out_of_range = |pair: &mut Pair| piece(pair.left(), RAM_BYTES as u64 - 99, 100);
    for bad in [
        other_domain as fn(&mut Pair) -> Sge,
        unknown_key,
        out_of_range,
    ] {
        let mut pair = Pair::new(Options::default());
        let (good, bad) = (piece(pair.left(), 0, 5000), bad(&mut pair));
        let target = remote(pair.right(), TARGET);
        post(pair.left(), 1, SendOp::RdmaWrite(target), &[good]);
        post(pair.left(), 2, SendOp::RdmaWrite(target), &[good, bad]);
        post(pair.left(), 3, SendOp::RdmaWrite(target), &[good]);
        pair.run();
        let expected = [(1, OK), (2, WcStatus::LocProtErr), (3, FLUSHED)];
        assert_eq!(sends(pair.left()), expected);
        assert_eq!(pair.left().qp.state(), QpState::Err);
        assert_eq!(pair.right().qp.state(), QpState::Rts);
        assert!(
            pair.sent_by(0)
                .iter()
                .all(|packet| packet.psn.value() < 105)
        );
    }
}

#[test]
fn memory_deregistered_during_a_message_fails_it_after_earlier_work_completes() {
    let flow = FlowConfig {
        window_initial_bytes: 8 << 10,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        flow,
        ..Options::default()
    });
    let (source, target) = (piece(pair.left(), 0, 5000), remote(pair.right(), TARGET));
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    post(pair.left(), 2, SendOp::RdmaWrite(target), &[source]);
    pair.transmit();
    assert_eq!(pair.sent_by(0).len(), 8, "a part of the second");
    pair.left().memory.remove(KEY);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, WcStatus::LocProtErr)]);
}

#[test]
fn the_destination_of_a_read_must_be_writable() {
    let mut pair = Pair::new(Options::default());
    let pd = pair.left().pd();
    pair.left()
        .register(OTHER_KEY, 0, 4096, Access::empty(), pd);
    let target = Sge {
        lkey: OTHER_KEY,
        ..piece(pair.left(), 0, 100)
    };
    let source = remote(pair.right(), TARGET);
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::LocProtErr)]);
    assert!(pair.network.log.is_empty());
}

#[test]
fn a_region_without_local_write_can_be_sent_from() {
    let mut pair = Pair::new(Options::default());
    let pd = pair.left().pd();
    pair.left()
        .register(OTHER_KEY, 0, 4096, Access::empty(), pd);
    let source = Sge {
        lkey: OTHER_KEY,
        ..piece(pair.left(), 0, 100)
    };
    let target = remote(pair.right(), TARGET);
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn a_destination_deregistered_during_a_read_fails_the_read() {
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.left(), 0, 40_000);
    let source = remote(pair.right(), TARGET);
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.transmit();
    pair.left().memory.remove(KEY);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::LocProtErr)]);
    assert_eq!(pair.left().placements, 0);
}

#[test]
fn a_receive_into_memory_that_is_not_registered_is_an_error_on_both_sides() {
    let mut pair = Pair::new(Options::default());
    let good = piece(pair.right(), TARGET, 1500);
    let bad = Sge { lkey: 5, ..good };
    post_recv(pair.right(), 1, &[good, bad]);
    post_recv(pair.right(), 2, &[good]);
    let source = piece(pair.left(), 0, 2000);
    post(pair.left(), 1, SendOp::Send, &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::RemOpErr)]);
    assert_eq!(
        receives(pair.right()),
        [(1, WcStatus::LocProtErr), (2, FLUSHED)]
    );
}

#[test]
fn a_source_deregistered_during_a_read_is_refused() {
    let mut pair = Pair::new(Options::default());
    let (target, source) = (piece(pair.left(), 0, 40_000), remote(pair.right(), TARGET));
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    // The request arrives and a part of the answer is sent.
    pair.transmit();
    pair.deliver_for(Duration::from_micros(60));
    for _ in 0..5 {
        pair.hosts[1].next_packet(pair.now).expect("read data");
    }
    pair.right().memory.remove(KEY);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(pair.right().qp.state(), QpState::Err);
}

#[test]
fn work_before_a_refused_request_completes() {
    let mut pair = Pair::new(Options::default());
    let local = piece(pair.left(), 0, 3000);
    let good = remote(pair.right(), TARGET);
    let bad = RemoteAddr { rkey: 5, ..good };
    post(pair.left(), 1, SendOp::RdmaWrite(good), &[local]);
    post(pair.left(), 2, SendOp::RdmaRead(good), &[local]);
    post(pair.left(), 3, SendOp::RdmaWrite(bad), &[local]);
    post(pair.left(), 4, SendOp::RdmaWrite(good), &[local]);
    pair.run();
    let expected = [(1, OK), (2, OK), (3, WcStatus::RemAccessErr), (4, FLUSHED)];
    assert_eq!(sends(pair.left()), expected);
}
