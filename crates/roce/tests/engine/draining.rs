//! SQD: the send queue drains, attributes change, and work continues.

use std::time::Duration;

use portolan_provider::error::errno;
use portolan_provider::verbs::{
    AsyncEvent, Mtu, QpAttr, QpAttrMask, QpState, QpType, SendFlags, SendOp, Sge, WcStatus,
};
use portolan_wire::bth::Opcode;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = 0x8_0000;
const NOTIFY: QpAttrMask = QpAttrMask::EN_SQD_ASYNC_NOTIFY;

fn go(host: &mut Host, state: QpState, mask: QpAttrMask) {
    let attr = QpAttr {
        state,
        ..host.qp.query().0
    };
    let mask = mask | QpAttrMask::STATE;
    host.qp.modify(&attr, mask).expect("a legal transition");
    host.drain();
}

fn drained(host: &Host) -> [AsyncEvent; 1] {
    [AsyncEvent::SqDrained(host.qp.qpn())]
}

/// Two writes of several packets each.
fn post_two(pair: &mut Pair) {
    pair.left().fill(0, 20_000, 1);
    for wr_id in [1, 2] {
        let at = wr_id * 10_000 - 10_000;
        let source = piece(pair.left(), at, 10_000);
        let place = remote(pair.right(), TARGET + at);
        post(pair.left(), wr_id, SendOp::RdmaWrite(place), &[source]);
    }
}

/// Two writes. The first is unsignaled, so the second would have requested the acknowledgement for both.
fn post_quiet_one_before(pair: &mut Pair, source: Sge) {
    pair.left().fill(0, 20_000, 1);
    let (quiet, place) = (piece(pair.left(), 0, 10_000), remote(pair.right(), TARGET));
    let op = SendOp::RdmaWrite(place);
    post_with(pair.left(), 1, op, &[quiet], SendFlags::empty());
    post(pair.left(), 2, op, &[source]);
}

#[test]
fn without_a_timer_a_send_queue_drains_even_if_its_last_packet_requested_no_acknowledgement() {
    for packets in [1, 3] {
        let mut pair = Pair::new(Options {
            timeout: 0,
            ..Options::default()
        });
        let source = piece(pair.left(), 0, 10_000);
        post_quiet_one_before(&mut pair, source);
        for _ in 0..packets {
            let bytes = pair.left().next_packet(Duration::ZERO).expect("a write");
            pair.network.send(Duration::ZERO, 0, bytes);
        }
        go(pair.left(), QpState::Sqd, NOTIFY);
        pair.run();
        assert_eq!(pair.hosts[0].events, drained(&pair.hosts[0]));
        assert_eq!(pair.left().qp.counters().retransmits, 1);
        go(pair.left(), QpState::Rts, QpAttrMask::empty());
        pair.run();
        assert_eq!(sends(pair.left()), [(2, OK)]);
    }
}

#[test]
fn without_a_timer_work_on_unusable_memory_fails_even_if_earlier_work_requested_no_acknowledgement()
{
    let mut pair = Pair::new(Options {
        timeout: 0,
        ..Options::default()
    });
    let unusable = Sge {
        lkey: KEY + 1,
        ..piece(pair.left(), 0, 10)
    };
    post_quiet_one_before(&mut pair, unusable);
    pair.run();
    assert_eq!(sends(pair.left()), [(2, WcStatus::LocProtErr)]);
}

#[test]
fn begun_work_is_finished_and_reported_and_no_other_work_is_begun() {
    let mut pair = Pair::new(Options {
        mtu: Mtu::Mtu256,
        ..Options::default()
    });
    post_two(&mut pair);
    // Three packets of the first message have been sent.
    for _ in 0..3 {
        let bytes = pair.left().next_packet(Duration::ZERO).expect("a write");
        pair.network.send(Duration::ZERO, 0, bytes);
    }
    go(pair.left(), QpState::Sqd, NOTIFY);
    assert!(pair.left().events.is_empty(), "not yet");
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(pair.hosts[0].events, drained(&pair.hosts[0]));
    assert_eq!(pair.sent_by(0).len(), 40, "ten thousand bytes, 256 each");
    // Newly posted work waits too.
    let place = remote(pair.right(), 0);
    post(pair.left(), 3, SendOp::RdmaWrite(place), &[]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    go(pair.left(), QpState::Rts, QpAttrMask::empty());
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(pair.left().events.len(), 1, "told once");
    assert!(pair.hosts[1].bytes(TARGET, 20_000) == pair.hosts[0].bytes(0, 20_000));
}

#[test]
fn a_queue_without_begun_work_is_drained_at_once_and_reports_it_only_if_requested() {
    for (mask, told) in [(NOTIFY, true), (QpAttrMask::empty(), false)] {
        let mut pair = Pair::new(Options::default());
        post_two(&mut pair);
        go(pair.left(), QpState::Sqd, mask);
        assert_eq!(pair.hosts[0].events == drained(&pair.hosts[0]), told);
        pair.run();
        assert!(pair.sent_by(0).is_empty());
        assert_eq!(pair.left().events.len(), usize::from(told));
    }
}

#[test]
fn draining_repairs_losses_and_receives_the_answers_of_reads_and_atomics() {
    for seed in 0..100 {
        let mut pair = Pair::new(Options {
            seed,
            ..Options::default()
        });
        pair.network.faults = Faults {
            lost_permille: 200,
            repeated_permille: 100,
            delayed_permille: 100,
        };
        pair.right().fill(0, 5000, seed);
        let (target, place) = (piece(pair.left(), 0x1_0000, 5000), remote(pair.right(), 0));
        post(pair.left(), 1, SendOp::RdmaRead(place), &[target]);
        let add = SendOp::AtomicFetchAdd {
            remote: remote(pair.right(), TARGET),
            add: 5,
        };
        let answer = piece(pair.left(), 0x2_0000, 8);
        post(pair.left(), 2, add, &[answer]);
        pair.transmit();
        let begun = pair.sent_by(0).len();
        post(pair.left(), 3, SendOp::RdmaRead(place), &[target]);
        go(pair.left(), QpState::Sqd, NOTIFY);
        pair.run();
        assert_eq!(begun, 2, "seed {seed}");
        assert_eq!(sends(pair.left()), [(1, OK), (2, OK)], "seed {seed}");
        assert_eq!(pair.right().atomics, 1, "seed {seed}");
        assert_eq!(pair.hosts[0].events, drained(&pair.hosts[0]), "seed {seed}");
    }
}

#[test]
fn the_peers_work_is_answered_while_draining() {
    let mut pair = Pair::new(Options::default());
    go(pair.left(), QpState::Sqd, NOTIFY);
    let target = piece(pair.left(), TARGET, 100);
    post_recv(pair.left(), 7, &[target]);
    let (source, place) = (piece(pair.right(), 0, 100), remote(pair.left(), 0));
    post(pair.right(), 1, SendOp::Send, &[source]);
    post(pair.right(), 2, SendOp::RdmaRead(place), &[source]);
    pair.run();
    assert_eq!(receives(pair.left()), [(7, OK)]);
    assert_eq!(sends(pair.right()), [(1, OK), (2, OK)]);
}

#[test]
fn attributes_changed_while_drained_take_effect() {
    let mut pair = Pair::new(Options::default());
    go(pair.left(), QpState::Sqd, QpAttrMask::empty());
    let attr = QpAttr {
        retry_cnt: 0,
        timeout: 10,
        max_rd_atomic: 1,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::RETRY_CNT | QpAttrMask::TIMEOUT | QpAttrMask::MAX_QP_RD_ATOMIC;
    pair.left().qp.modify(&attr, mask).expect("in SQD it may");
    assert_eq!(pair.left().qp.state(), QpState::Sqd);
    let found = pair.left().qp.query().0;
    let found = (found.retry_cnt, found.timeout, found.max_rd_atomic);
    assert_eq!(found, (0, 10, 1));
    go(pair.left(), QpState::Rts, QpAttrMask::empty());
    let (target, place) = (piece(pair.left(), 0x1_0000, 8), remote(pair.right(), 0));
    for wr_id in [1, 2] {
        post(pair.left(), wr_id, SendOp::RdmaRead(place), &[target]);
    }
    pair.transmit();
    assert_eq!(pair.sent_by(0).len(), 1, "one read at a time");
    pair.run();
    // No retries, after 4.096 us times 2^10.
    pair.network.script = Some(Box::new(|_| Action::Drop));
    let start = pair.now;
    post(pair.left(), 3, SendOp::RdmaRead(place), &[target]);
    pair.run();
    assert_eq!(sends(pair.left())[2], (3, WcStatus::RetryExcErr));
    let waited = pair.now - start;
    assert!(waited < Duration::from_millis(10), "{waited:?}");
}

#[test]
fn a_local_invalidation_and_a_fenced_send_wait_too() {
    let mut pair = Pair::new(Options::default());
    go(pair.left(), QpState::Sqd, NOTIFY);
    post(pair.left(), 1, SendOp::LocalInv(5), &[]);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    post_with(pair.left(), 2, SendOp::Send, &[], fenced);
    pair.run();
    assert!(sends(pair.left()).is_empty());
    // Neither prevents the queue pair from failing.
    go(pair.left(), QpState::Err, QpAttrMask::empty());
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(sends(pair.left()), [(1, flushed), (2, flushed)]);
}

#[test]
fn an_error_while_draining_fails_the_queue_pair_without_a_drained_event() {
    let mut pair = Pair::new(Options::default());
    let (source, place) = (piece(pair.left(), 0, 100), remote(pair.right(), TARGET));
    let nowhere = portolan_provider::verbs::RemoteAddr { rkey: 1, ..place };
    post(pair.left(), 1, SendOp::RdmaWrite(nowhere), &[source]);
    pair.transmit();
    go(pair.left(), QpState::Sqd, NOTIFY);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(pair.left().qp.state(), QpState::Err);
    assert!(pair.left().events.is_empty());
    let last = pair.sent_by(1);
    assert!(last.iter().all(|sent| sent.opcode == Opcode::RcAck));
}

#[test]
fn sqd_can_only_be_entered_from_rts() {
    let mut host = Host::new(0, &Options::default());
    let attr = QpAttr {
        state: QpState::Sqd,
        ..QpAttr::default()
    };
    let error = host.qp.modify(&attr, QpAttrMask::STATE);
    assert_eq!(error.expect_err("from RESET").errno(), errno::EINVAL);
}

#[test]
fn an_unreliable_connection_finishes_its_message_and_holds_the_next_one() {
    let mut pair = Pair::new(Options {
        qp_type: QpType::Uc,
        ..Options::default()
    });
    post_two(&mut pair);
    for _ in 0..3 {
        let bytes = pair.left().next_packet(Duration::ZERO).expect("a write");
        pair.network.send(Duration::ZERO, 0, bytes);
    }
    go(pair.left(), QpState::Sqd, NOTIFY);
    assert!(pair.left().events.is_empty(), "not yet");
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(pair.hosts[0].events, drained(&pair.hosts[0]));
    assert_eq!(pair.sent_by(0).len(), 10);
    go(pair.left(), QpState::Rts, QpAttrMask::empty());
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
    assert!(pair.hosts[1].bytes(TARGET, 20_000) == pair.hosts[0].bytes(0, 20_000));
}
