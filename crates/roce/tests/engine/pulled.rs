//! Requests that the peer carries out: what waits for them, and what the target checks.

use portolan_provider::verbs::{
    Access, AsyncEvent, QpAttr, QpAttrMask, QpState, QpType, SendData, SendFlags, SendOp, SendWr,
    WcStatus,
};

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = 0x8_0000;

fn post_only(host: &mut Host, wr_id: u64, op: SendOp, length: u32) {
    let sges = [piece(host, 0, length)];
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&sges),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    host.qp.post_send(&wr).unwrap();
}

fn move_to(host: &mut Host, state: QpState) {
    let attr = QpAttr {
        state,
        ..QpAttr::default()
    };
    host.qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

/// A pair whose first request the peer carries out.
fn held() -> Pair {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    post_only(pair.left(), 1, SendOp::RdmaWrite(target), 5000);
    pair.left().qp.hold_requests();
    post_only(pair.left(), 2, SendOp::RdmaWrite(target), 64);
    let into = piece(pair.right(), TARGET, 100);
    post_recv(pair.right(), 9, &[into]);
    post_only(pair.left(), 3, SendOp::Send, 64);
    pair
}

#[test]
fn later_requests_wait_and_answers_do_not() {
    let mut pair = held();
    let host = pair.left();
    assert!(!host.qp.is_one_sided_next());
    assert!(host.qp.poll_direct(&host.memory).is_none());
    let (there, into) = (remote(pair.left(), TARGET), piece(pair.left(), TARGET, 100));
    post_recv(pair.left(), 8, &[into]);
    post_only(pair.right(), 4, SendOp::Send, 64);
    post_only(pair.right(), 5, SendOp::RdmaRead(there), 64);
    pair.run();
    assert_eq!(sends(pair.right()), [(4, OK), (5, OK)]);
    assert_eq!(sends(pair.left()), []);

    assert!(pair.left().qp.release_requests());
    assert!(!pair.left().qp.release_requests(), "only once");
    pair.left().qp.complete_direct();
    pair.left().drain();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_request_that_the_peer_does_not_carry_out_is_sent_by_packets() {
    let mut pair = held();
    assert!(pair.left().qp.release_requests());
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_queue_pair_that_fails_meanwhile_flushes_all() {
    let mut pair = held();
    pair.left().qp.fail();
    pair.left().drain();
    let flushed = [1, 2, 3].map(|number| (number, WcStatus::WrFlushErr));
    assert_eq!(sends(pair.left()), flushed);
    assert!(!pair.left().qp.release_requests());
}

#[test]
fn the_send_queue_is_drained_only_after_the_peer_is_done() {
    let mut pair = held();
    let attr = QpAttr {
        state: QpState::Sqd,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    pair.left().qp.modify(&attr, mask).unwrap();
    pair.run();
    assert!(pair.left().events.is_empty());
    assert!(pair.left().qp.release_requests());
    pair.left().qp.complete_direct();
    pair.run();
    assert!(matches!(pair.left().events[..], [AsyncEvent::SqDrained(_)]));
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

/// Where the peer's bytes of a write are for, if it is allowed.
fn place(host: &Host, rkey: u32, addr: u64, len: u32) -> Option<u64> {
    host.qp.pulled_write(&host.memory, rkey, addr, len)
}

#[test]
fn the_target_checks_what_it_checks_of_packets() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    let (base, pd) = (pair.right().base, pair.right().pd());
    pair.right().register(77, 0, 100, Access::REMOTE_READ, pd);
    let host = pair.right();
    assert_eq!(
        place(host, target.rkey, target.addr, 5000),
        Some(base + TARGET)
    );
    assert_eq!(place(host, target.rkey ^ 1, target.addr, 5000), None);
    assert_eq!(place(host, target.rkey, target.addr, u32::MAX), None);
    assert_eq!(place(host, 77, base, 8), None, "a key for reading only");

    // In the middle of a message.
    post_only(pair.left(), 1, SendOp::RdmaWrite(target), 5000);
    let first = pair.hosts[0].next_packet(pair.now).unwrap();
    let now = pair.now;
    pair.right().receive(now, &first);
    assert_eq!(place(pair.right(), target.rkey, target.addr, 8), None);
    pair.run();
    assert!(place(pair.right(), target.rkey, target.addr, 8).is_some());

    let attr = QpAttr {
        access: Access::REMOTE_READ,
        ..QpAttr::default()
    };
    let host = pair.right();
    host.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
    assert_eq!(place(host, target.rkey, target.addr, 8), None);

    let mut pair = Pair::new(Options::default());
    move_to(pair.right(), QpState::Err);
    assert_eq!(place(pair.right(), target.rkey, target.addr, 8), None);
    let mut pair = Pair::new(Options {
        qp_type: QpType::Uc,
        ..Options::default()
    });
    assert_eq!(place(pair.right(), target.rkey, target.addr, 8), None);
}
