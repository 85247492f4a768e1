//! Memory windows and key invalidation: in the order of the work, and checks of rights.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, AsyncEvent, MwBind, MwType, QpState, RemoteAddr, SendFlags, SendOp, WcOpcode, WcStatus,
};
use portolan_roce::engine::{WindowChange, WindowError};
use portolan_wire::bth::Opcode;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const TARGET: u64 = 0x8_0000;
/// A region of the right host to which windows may be bound.
const LKEY: u32 = 0x3000_0003;
/// The window's keys before and after binding.
const UNBOUND: u32 = 0x4000_0000;
const RKEY: u32 = 0x4000_0001;

/// A pair whose right host has a region for windows and an unbound window.
fn pair(options: Options, mw_type: MwType) -> Pair {
    let mut pair = Pair::new(options);
    let host = pair.right();
    let pd = host.pd();
    let access = all_rights() | Access::MW_BIND;
    host.register(LKEY, TARGET, 0x2000, access, pd);
    let window = host.memory.alloc_window(UNBOUND, pd, mw_type, 4);
    window.expect("the first");
    pair
}

/// The first 4096 bytes of the region.
fn binding(host: &Host, access: Access) -> MwBind {
    MwBind {
        lkey: LKEY,
        addr: host.base + TARGET,
        length: 4096,
        access,
    }
}

fn bind_op(host: &Host, access: Access) -> SendOp {
    SendOp::BindMw {
        rkey: UNBOUND,
        new_rkey: RKEY,
        bind: binding(host, access),
    }
}

fn bound_pair(options: Options, access: Access) -> Pair {
    let mut pair = pair(options, MwType::Type2);
    let op = bind_op(pair.right(), access);
    post(pair.right(), 100, op, &[]);
    pair.run();
    assert_eq!(sends(pair.right()), [(100, OK)]);
    pair.right().sends.clear();
    pair
}

fn through(host: &Host, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: host.base + TARGET + offset,
        rkey: RKEY,
    }
}

#[test]
fn a_peer_reads_writes_and_adds_only_within_a_window() {
    let remote_rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut pair = pair(Options::default(), mw_type);
        let op = bind_op(pair.right(), remote_rights);
        post(pair.right(), 7, op, &[]);
        pair.run();
        assert_eq!(pair.right().sends[0].opcode, WcOpcode::BindMw);
        pair.left().fill(0, 4096, 1);
        let (source, back) = (
            piece(pair.left(), 0, 4096),
            piece(pair.left(), 0x8000, 4096),
        );
        let answer = piece(pair.left(), 0xF000, 8);
        let place = through(pair.right(), 0);
        post(pair.left(), 1, SendOp::RdmaWrite(place), &[source]);
        post(pair.left(), 2, SendOp::RdmaRead(place), &[back]);
        let add = SendOp::AtomicFetchAdd {
            remote: through(pair.right(), 4088),
            add: 1,
        };
        post(pair.left(), 3, add, &[answer]);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
        // Without a fence, the addition may execute before the end of the read.
        assert!(pair.left().bytes(0x8000, 4088) == &pattern(4096, 1)[..4088]);
        // The region extends further than the window.
        let beyond = through(pair.right(), 1);
        post(pair.left(), 4, SendOp::RdmaWrite(beyond), &[source]);
        pair.run();
        assert_eq!(sends(pair.left())[3], (4, WcStatus::RemAccessErr));
    }
}

#[test]
fn a_window_grants_only_the_rights_that_it_was_bound_with() {
    let cases = [
        (Access::REMOTE_READ, true),
        (Access::REMOTE_WRITE, false),
        (Access::empty(), false),
    ];
    for (access, is_write) in cases {
        let mut pair = bound_pair(Options::default(), access);
        let (local, place) = (piece(pair.left(), 0, 8), through(pair.right(), 0));
        let op = match is_write {
            true => SendOp::RdmaWrite(place),
            false => SendOp::RdmaRead(place),
        };
        post(pair.left(), 1, op, &[local]);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, WcStatus::RemAccessErr)]);
        let qpn = pair.right().qp.qpn();
        assert_eq!(pair.right().events, [AsyncEvent::QpAccessErr(qpn)]);
    }
}

#[test]
fn binding_and_invalidating_take_effect_and_complete_in_the_order_of_the_work() {
    let mut pair = pair(Options::default(), MwType::Type2);
    post_recv(pair.left(), 1, &[]);
    post_recv(pair.left(), 2, &[]);
    let bind = bind_op(pair.right(), Access::REMOTE_WRITE);
    // The first send announces that the window is open, the second that it is closed.
    post(pair.right(), 10, bind, &[]);
    post(pair.right(), 11, SendOp::Send, &[]);
    pair.run();
    let (source, place) = (piece(pair.left(), 0, 100), through(pair.right(), 0));
    post(pair.left(), 1, SendOp::RdmaWrite(place), &[source]);
    pair.run();
    post(pair.right(), 12, SendOp::LocalInv(RKEY), &[]);
    post(pair.right(), 13, SendOp::Send, &[]);
    pair.run();
    let all = [(10, OK), (11, OK), (12, OK), (13, OK)];
    assert_eq!(sends(pair.right()), all);
    assert_eq!(pair.right().sends[2].opcode, WcOpcode::LocalInv);
    post(pair.left(), 2, SendOp::RdmaWrite(place), &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, WcStatus::RemAccessErr)]);
}

#[test]
fn local_work_completes_after_earlier_messages_even_if_these_are_unsignaled() {
    let mut pair = pair(Options::default(), MwType::Type2);
    let source = piece(pair.right(), 0, 3000);
    let place = remote(pair.left(), TARGET);
    let none = SendFlags::empty();
    post_with(pair.right(), 1, SendOp::RdmaWrite(place), &[source], none);
    let bind = bind_op(pair.right(), Access::REMOTE_READ);
    post(pair.right(), 2, bind, &[]);
    pair.transmit();
    assert!(sends(pair.right()).is_empty(), "the write may still fail");
    pair.run();
    assert_eq!(sends(pair.right()), [(2, OK)]);
    assert_eq!(
        pair.right().qp.counters().timeouts,
        0,
        "no timer may be needed"
    );
}

#[test]
fn a_fenced_invalidation_waits_for_the_reads_before_it() {
    let mut pair = bound_pair(Options::default(), Access::REMOTE_READ);
    let (target, place) = (piece(pair.right(), 0, 3000), remote(pair.left(), 0));
    post(pair.right(), 1, SendOp::RdmaRead(place), &[target]);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    post_with(pair.right(), 2, SendOp::LocalInv(RKEY), &[], flags);
    pair.transmit();
    let held = |pair: &mut Pair| pair.right().memory.deregister(LKEY).is_err();
    assert!(held(&mut pair), "it must wait for the read");
    pair.run();
    assert!(!held(&mut pair));
    assert_eq!(sends(pair.right()), [(1, OK), (2, OK)]);
}

#[test]
fn local_work_is_executed_once_while_work_around_it_is_retransmitted() {
    for seed in 0..100 {
        let mut pair = pair(
            Options {
                seed,
                ..Options::default()
            },
            MwType::Type2,
        );
        pair.network.faults = Faults {
            lost_permille: 200,
            repeated_permille: 100,
            delayed_permille: 100,
        };
        let (source, place) = (piece(pair.right(), 0, 2500), remote(pair.left(), TARGET));
        let mut expected = Vec::new();
        let mut rkey = UNBOUND;
        for round in 0..5u64 {
            let bind = SendOp::BindMw {
                rkey,
                new_rkey: rkey + 1,
                bind: binding(pair.right(), Access::REMOTE_READ),
            };
            rkey += 1;
            // Each of the two would fail if executed twice.
            for (step, op) in [SendOp::RdmaWrite(place), bind, SendOp::LocalInv(rkey)]
                .into_iter()
                .enumerate()
            {
                let wr_id = round * 3 + step as u64;
                let sges = [source];
                post(pair.right(), wr_id, op, if step == 0 { &sges } else { &[] });
                expected.push((wr_id, OK));
            }
        }
        pair.run();
        assert_eq!(sends(pair.right()), expected, "seed {seed}");
        assert_eq!(pair.states(), [QpState::Rts; 2], "seed {seed}");
    }
}

#[test]
fn forbidden_work_fails_the_queue_pair_after_earlier_work() {
    let wrong_bind = |host: &Host| SendOp::BindMw {
        rkey: UNBOUND,
        new_rkey: RKEY,
        bind: MwBind {
            lkey: KEY,
            ..binding(host, Access::REMOTE_READ)
        },
    };
    let unknown = |_: &Host| SendOp::LocalInv(99);
    let region = |_: &Host| SendOp::LocalInv(LKEY);
    type Case = (fn(&Host) -> SendOp, WcStatus);
    let cases: [Case; 3] = [
        (wrong_bind, WcStatus::MwBindErr),
        (unknown, WcStatus::LocQpOpErr),
        (region, WcStatus::LocQpOpErr),
    ];
    for (op, status) in cases {
        let mut pair = pair(Options::default(), MwType::Type2);
        let (source, place) = (piece(pair.right(), 0, 3000), remote(pair.left(), TARGET));
        post(pair.right(), 1, SendOp::RdmaWrite(place), &[source]);
        let op = op(pair.right());
        post_with(pair.right(), 2, op, &[], SendFlags::empty());
        post(pair.right(), 3, SendOp::RdmaWrite(place), &[source]);
        pair.run();
        assert_eq!(sends(pair.right()), [(1, OK), (2, status), (3, FLUSHED)]);
        assert_eq!(pair.right().qp.state(), QpState::Err);
    }
}

#[test]
fn a_binding_may_name_rights_of_the_owner_which_grant_a_peer_nothing() {
    for owners in [Access::LOCAL_WRITE, Access::MW_BIND] {
        for (peers, status) in [
            (Access::REMOTE_WRITE, OK),
            (Access::empty(), WcStatus::RemAccessErr),
        ] {
            let mut pair = bound_pair(Options::default(), peers | owners);
            let (source, place) = (piece(pair.left(), 0, 3000), through(pair.right(), 0));
            post(pair.left(), 1, SendOp::RdmaWrite(place), &[source]);
            pair.run();
            assert_eq!(sends(pair.left()), [(1, status)], "{peers:?} {owners:?}");
        }
    }
}

#[test]
fn a_send_invalidates_a_key_of_its_receiver_and_reports_it() {
    for len in [0, 100, 5000] {
        let mut pair = bound_pair(Options::default(), Access::REMOTE_WRITE);
        let target = piece(pair.right(), 0, 5000);
        post_recv(pair.right(), 1, &[target]);
        let source = piece(pair.left(), 0, len);
        post(pair.left(), 1, SendOp::SendWithInv(RKEY), &[source]);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, OK)]);
        let (wc, _) = pair.right().receives[0];
        let told = (wc.status, wc.byte_len, wc.invalidated_rkey, wc.imm_data);
        assert_eq!(told, (OK, len, Some(RKEY), None));
        let last = *pair.sent_by(0).last().expect("a packet was sent");
        let opcode = match len {
            5000 => Opcode::RcSendLastInv,
            _ => Opcode::RcSendOnlyInv,
        };
        assert_eq!(last.opcode, opcode);
        assert_eq!(last.headers.ieth.map(|ieth| ieth.rkey), Some(RKEY));
        // The key is invalid, both for the peer and for another invalidation.
        let pd = pair.right().pd();
        let operation = portolan_roce::engine::MemoryOperation {
            pd,
            qpn: Host::qpn(1),
            rkey: RKEY,
            change: WindowChange::Invalidate,
        };
        let again = pair.right().memory.apply(&operation);
        assert_eq!(again, Err(WindowError::NotInvalidatable));
        let (source, place) = (piece(pair.left(), 0, 8), through(pair.right(), 0));
        post(pair.left(), 2, SendOp::RdmaWrite(place), &[source]);
        pair.run();
        assert_eq!(sends(pair.left())[1], (2, WcStatus::RemAccessErr));
    }
}

#[test]
fn a_key_is_invalidated_once_whatever_is_lost_or_repeated() {
    for seed in 0..100 {
        let mut pair = bound_pair(
            Options {
                seed,
                ..Options::default()
            },
            Access::REMOTE_WRITE,
        );
        pair.network.faults = Faults {
            lost_permille: 200,
            repeated_permille: 200,
            delayed_permille: 100,
        };
        let target = piece(pair.right(), 0, 5000);
        for wr_id in [1, 2] {
            post_recv(pair.right(), wr_id, &[target]);
        }
        let source = piece(pair.left(), 0, 5000);
        post(pair.left(), 1, SendOp::SendWithInv(RKEY), &[source]);
        post(pair.left(), 2, SendOp::Send, &[source]);
        pair.run();
        assert_eq!(receives(pair.right()), [(1, OK), (2, OK)], "seed {seed}");
        assert_eq!(sends(pair.left()), [(1, OK), (2, OK)], "seed {seed}");
    }
}

#[test]
fn a_peer_can_only_invalidate_a_bound_window_of_type_2() {
    for (what, key) in [
        ("a region", KEY),
        ("an unbound window", UNBOUND),
        ("nothing", 0x7777_7777),
    ] {
        let mut pair = pair(Options::default(), MwType::Type2);
        let target = piece(pair.right(), 0, 100);
        post_recv(pair.right(), 1, &[target]);
        let source = piece(pair.left(), 0, 100);
        pair.left().fill(0, 100, 3);
        post(pair.left(), 1, SendOp::SendWithInv(key), &[source]);
        pair.run();
        let refused = [(1, WcStatus::RemAccessErr)];
        assert_eq!(sends(pair.left()), refused, "{what}");
        let ended = [(1, WcStatus::RemInvReqErr)];
        assert_eq!(receives(pair.right()), ended, "{what}");
        assert_eq!(pair.right().placements, 0, "{what}");
        assert_eq!(pair.states(), [QpState::Err; 2], "{what}");
    }
}

#[test]
fn a_key_invalidated_during_a_write_stops_it() {
    let mut pair = bound_pair(Options::default(), Access::REMOTE_WRITE);
    let (source, place) = (piece(pair.left(), 0, 4096), through(pair.right(), 0));
    post(pair.left(), 1, SendOp::RdmaWrite(place), &[source]);
    // Two of four packets have arrived when the owner invalidates.
    let mut index = 0u32;
    pair.network.script = Some(Box::new(move |sent| {
        index += u32::from(sent.from == 0);
        match (sent.from, index) {
            (0, 3..) => Action::Delay(Duration::from_millis(1)),
            _ => Action::Pass,
        }
    }));
    pair.settle(Duration::from_micros(500));
    assert_eq!(pair.right().placements, 2);
    post(pair.right(), 9, SendOp::LocalInv(RKEY), &[]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(pair.right().placements, 2);
}
