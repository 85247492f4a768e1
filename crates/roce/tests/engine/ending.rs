//! The end of a queue pair's work: ERR, RESET and failures from outside; and work refused at posting.

use std::time::Duration;

use portolan_provider::Cause;
use portolan_provider::error::errno;
use portolan_provider::verbs::{
    AsyncEvent, QpAttr, QpState, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge,
    WcStatus,
};
use portolan_roce::engine::DropReason;
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AethRepr, NakCode, Syndrome};
use portolan_wire::rocev2::Headers;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const TARGET: u64 = 0x8_0000;

#[test]
fn modifying_to_err_flushes_both_queues_in_order_and_unsignaled_work_too() {
    let mut pair = Pair::new(Options::default());
    let (local, target) = (piece(pair.left(), 0, 3000), remote(pair.right(), TARGET));
    for wr_id in [1, 2, 3] {
        let flags = SendFlags::empty();
        post_with(
            pair.left(),
            wr_id,
            SendOp::RdmaWrite(target),
            &[local],
            flags,
        );
        post_recv(pair.left(), wr_id + 10, &[local]);
    }
    pair.transmit();
    pair.left().modify(&QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    });
    assert_eq!(
        sends(pair.left()),
        [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]
    );
    assert_eq!(
        receives(pair.left()),
        [(11, FLUSHED), (12, FLUSHED), (13, FLUSHED)]
    );
    assert_eq!(pair.left().qp.poll_timeout(), None);
    let sent = pair.sent_by(0).len();
    pair.run();
    assert_eq!(
        pair.sent_by(0).len(),
        sent,
        "a queue pair in error is silent"
    );
    assert!(pair.left().qp.counters().drops(DropReason::State) > 0);
}

#[test]
fn work_posted_in_err_is_flushed_at_once() {
    let mut pair = Pair::new(Options::default());
    pair.left().modify(&QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    });
    for wr_id in 0..100 {
        post_with(pair.left(), wr_id, SendOp::Send, &[], SendFlags::empty());
        post_recv(pair.left(), wr_id, &[]);
    }
    assert_eq!(pair.left().sends.len(), 100);
    assert!(pair.left().sends.iter().all(|wc| wc.status == FLUSHED));
    assert_eq!(pair.left().receives.len(), 100);
}

#[test]
fn reset_drops_work_without_completions_and_the_queue_pair_can_connect_again() {
    let options = Options::default();
    let mut pair = Pair::new(options.clone());
    let (local, target) = (piece(pair.left(), 0, 3000), remote(pair.right(), TARGET));
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[local]);
    post_recv(pair.left(), 2, &[local]);
    pair.transmit();
    pair.network = Network::new(1);
    for host in &mut pair.hosts {
        host.modify(&QpAttr {
            state: QpState::Reset,
            ..QpAttr::default()
        });
        assert!(host.sends.is_empty() && host.receives.is_empty());
        host.connect(&options);
    }
    post(pair.left(), 3, SendOp::RdmaWrite(target), &[local]);
    pair.run();
    assert_eq!(sends(pair.left()), [(3, OK)]);
}

#[test]
fn a_failure_from_outside_flushes_and_raises_an_event() {
    let mut pair = Pair::new(Options::default());
    post_recv(pair.left(), 1, &[]);
    pair.left().qp.fail();
    pair.left().drain();
    assert_eq!(receives(pair.left()), [(1, FLUSHED)]);
    let qpn = pair.left().qp.qpn();
    assert_eq!(pair.left().events, [AsyncEvent::QpFatal(qpn)]);
}

#[test]
fn a_full_queue_and_exceeded_limits_are_refused_at_posting() {
    let mut pair = Pair::new(Options {
        rd_atomic: 0,
        ..Options::default()
    });
    let qp = &mut pair.left().qp;
    let wr = |op, data| SendWr {
        wr_id: 1,
        op,
        data,
        flags: SendFlags::empty(),
        ud: None,
        srq: None,
    };
    let nine = [Sge::default(); 9];
    let huge = [Sge {
        length: u32::MAX,
        ..Sge::default()
    }];
    let place = RemoteAddr { addr: 0, rkey: 0 };
    for (what, bad) in [
        ("pieces", wr(SendOp::Send, SendData::Sges(&nine))),
        ("inline data", wr(SendOp::Send, SendData::Inline(&[0; 257]))),
        (
            "length",
            wr(SendOp::RdmaWrite(place), SendData::Sges(&huge)),
        ),
        (
            "inline read",
            wr(SendOp::RdmaRead(place), SendData::Inline(&[])),
        ),
        (
            "read without resources",
            wr(SendOp::RdmaRead(place), SendData::Sges(&[])),
        ),
    ] {
        let error = qp.post_send(&bad).expect_err(what);
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{what}: {error}"
        );
    }
    let error = qp
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &nine,
        })
        .expect_err("pieces");
    assert_eq!(error.errno(), errno::EINVAL);
    for _ in 0..64 {
        qp.post_send(&wr(SendOp::Send, SendData::Sges(&[])))
            .expect("room");
        qp.post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .expect("room");
    }
    let error = qp
        .post_send(&wr(SendOp::Send, SendData::Sges(&[])))
        .expect_err("full");
    assert_eq!(
        error.to_string(),
        "post send: the limit of 64 send work requests is reached"
    );
    assert_eq!(error.errno(), errno::ENOMEM);
    let error = qp
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .expect_err("full");
    assert_eq!(error.errno(), errno::ENOMEM);
}

#[test]
fn a_failing_queue_pair_does_not_send_its_pending_answers() {
    type Failure = fn(&mut Host);
    let modified: Failure = |host| {
        host.modify(&QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        })
    };
    let failed: Failure = |host| host.qp.fail();
    let timed_out: Failure = |host| {
        // Each at its time: a late timer says nothing about the peer.
        while let Some(due) = host.qp.poll_timeout() {
            host.qp.handle_timeout(due);
        }
    };
    let refused: Failure = |host| {
        let mut nak = Headers::new(Opcode::RcAck, Host::qpn(1), Psn::new(100));
        let syndrome = Syndrome::Nak(NakCode::InvalidRequest);
        nak.aeth = Some(AethRepr { syndrome, msn: 0 });
        host.receive_headers(&nak, &[]);
    };
    for fail in [modified, failed, timed_out, refused] {
        let mut pair = Pair::new(Options::default());
        let (local, place) = (piece(pair.right(), 0, 8), remote(pair.left(), TARGET));
        post(pair.right(), 1, SendOp::RdmaWrite(place), &[local]);
        pair.transmit();
        post_recv(pair.right(), 1, &[]);
        let mut request = Headers::new(Opcode::RcSendOnly, Host::qpn(1), Psn::new(100));
        request.bth.ack_request = true;
        pair.right().receive_headers(&request, &[]);
        fail(pair.right());
        assert_eq!(pair.right().qp.state(), QpState::Err);
        assert!(pair.right().next_packet(Duration::ZERO).is_none());
    }
}
