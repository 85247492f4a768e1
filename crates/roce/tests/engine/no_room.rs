//! Requests that the host has no room to send, as in the ring of a process that does not read.

use std::time::Duration;

use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, QpType, SendOp, WcStatus};
use portolan_wire::timer::cm_timeout_us;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;

/// Lets the left end find no room whenever it could send, until its timer stops or this much time has passed.
fn without_room(pair: &mut Pair, limit: Duration) {
    let end = pair.now + limit;
    loop {
        let now = pair.now;
        let left = pair.left();
        left.qp.wait_for_room(now, false);
        left.drain();
        let Some(due) = left.qp.poll_timeout().filter(|due| *due <= end) else {
            break;
        };
        left.qp.handle_timeout(due);
        left.drain();
        pair.now = due;
    }
    pair.now = end;
}

fn post_send(pair: &mut Pair, wr_id: u64) {
    let sges = [piece(pair.left(), 0, 64)];
    post(pair.left(), wr_id, SendOp::Send, &sges);
}

fn all_tries() -> Duration {
    let attr = connect_attr(0, &Options::default());
    Duration::from_micros(cm_timeout_us(attr.timeout)) * (u32::from(attr.retry_cnt) + 1)
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_request_without_room_fails_when_the_time_for_an_answer_is_over() {
    let mut pair = Pair::new(Options::default());
    pair.now = 5 * all_tries();
    post_send(&mut pair, 1);
    without_room(&mut pair, all_tries() - MS);
    assert_eq!(sends(pair.left()), []);
    without_room(&mut pair, MS);
    assert_eq!(sends(pair.left()), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(pair.left().qp.counters().timeouts, 0, "nothing was sent");
}

#[test]
fn a_request_that_gets_room_late_has_the_whole_time_for_its_answer() {
    let mut pair = Pair::new(Options::default());
    let place = piece(pair.right(), 0, 64);
    post_recv(pair.right(), 7, &[place]);
    post_send(&mut pair, 1);
    without_room(&mut pair, all_tries() - MS);
    let lost = pair.hosts[0].next_packet(pair.now);
    assert!(lost.is_some());
    let first_wait = pair.left().qp.poll_timeout().unwrap() - pair.now;
    let mut fresh = Pair::new(Options::default());
    post_send(&mut fresh, 1);
    assert!(fresh.hosts[0].next_packet(fresh.now).is_some());
    assert_eq!(Some(first_wait), fresh.left().qp.poll_timeout());
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn room_that_others_take_proves_that_it_is_made() {
    let mut pair = Pair::new(Options::default());
    post_send(&mut pair, 1);
    for _ in 0..3 {
        without_room(&mut pair, all_tries() - MS);
        let now = pair.now;
        pair.left().qp.wait_for_room(now, true);
    }
    assert_eq!(sends(pair.left()), []);
    without_room(&mut pair, all_tries());
    assert_eq!(sends(pair.left()), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn a_request_without_room_after_a_wait_for_a_receive_fails_too() {
    let mut pair = Pair::new(Options::default());
    post_send(&mut pair, 1);
    let bytes = pair.hosts[0].next_packet(pair.now).unwrap();
    let now = pair.now;
    pair.right().receive(now, &bytes);
    let nak = pair.hosts[1].next_packet(now).unwrap();
    pair.left().receive(now, &nak);
    without_room(&mut pair, 2 * all_tries());
    assert_eq!(sends(pair.left()), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn no_time_runs_for_a_request_that_is_not_to_be_sent() {
    let go = |pair: &mut Pair, state| {
        let attr = QpAttr {
            state,
            ..pair.left().qp.query().0
        };
        pair.left().qp.modify(&attr, QpAttrMask::STATE).unwrap();
        pair.left().drain();
    };
    let mut pair = Pair::new(Options::default());
    without_room(&mut pair, MS);
    assert_eq!(pair.left().qp.poll_timeout(), None, "without a request");
    let target = remote(pair.right(), 0x8_0000);
    let sges = [piece(pair.left(), 0, 64)];
    post(pair.left(), 1, SendOp::RdmaWrite(target), &sges);
    without_room(&mut pair, MS);
    assert!(pair.left().qp.poll_timeout().is_some());
    // The queue drains.
    go(&mut pair, QpState::Sqd);
    without_room(&mut pair, 2 * all_tries());
    assert_eq!(pair.left().qp.poll_timeout(), None);
    go(&mut pair, QpState::Rts);
    without_room(&mut pair, MS);
    // The peer carries the request out.
    pair.left().qp.hold_requests();
    without_room(&mut pair, 2 * all_tries());
    assert_eq!(pair.left().qp.poll_timeout(), None);
    assert!(pair.left().qp.release_requests());
    without_room(&mut pair, all_tries() - MS);
    pair.left().qp.complete_direct();
    pair.left().drain();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    // The next one has time of its own.
    post_send(&mut pair, 2);
    without_room(&mut pair, all_tries() - MS);
    assert_eq!(sends(pair.left()).len(), 1);
    without_room(&mut pair, MS);
    assert_eq!(sends(pair.left())[1], (2, WcStatus::RetryExcErr));
}

/// How long messages without acknowledgements wait for room.
const WAIT: Duration = Duration::from_secs(1);

fn unreliable() -> Pair {
    Pair::new(Options {
        qp_type: QpType::Uc,
        ..Options::default()
    })
}

#[test]
fn messages_without_acknowledgements_are_lost_after_a_second_without_room() {
    let mut pair = unreliable();
    post_send(&mut pair, 1);
    post_send(&mut pair, 2);
    without_room(&mut pair, WAIT - MS);
    assert_eq!(sends(pair.left()), []);
    without_room(&mut pair, MS);
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
    assert_eq!(pair.left().qp.poll_timeout(), None);
    // There is still no room.
    post_send(&mut pair, 3);
    without_room(&mut pair, Duration::ZERO);
    assert_eq!(sends(pair.left()).len(), 3);
    // There is room, so the next one waits again.
    let place = piece(pair.right(), 0, 64);
    post_recv(pair.right(), 7, &[place]);
    post_recv(pair.right(), 8, &[place]);
    post_send(&mut pair, 4);
    pair.run();
    assert_eq!(receives(pair.right()), [(7, OK)]);
    post_send(&mut pair, 5);
    without_room(&mut pair, WAIT - MS);
    assert_eq!(sends(pair.left()).len(), 4);
    pair.run();
    assert_eq!(receives(pair.right()), [(7, OK), (8, OK)]);
    assert_eq!(sends(pair.left()).len(), 5);
}

#[test]
fn a_message_whose_last_packets_find_no_room_is_lost_whole() {
    let mut pair = unreliable();
    let places = [0, 10_000].map(|at| piece(pair.right(), at, 5000));
    post_recv(pair.right(), 7, &places[..1]);
    post_recv(pair.right(), 8, &places[1..]);
    pair.left().fill(0, 64, 3);
    let long = piece(pair.left(), 0, 5000);
    post(pair.left(), 1, SendOp::Send, &[long]);
    let first = pair.hosts[0].next_packet(pair.now).unwrap();
    let now = pair.now;
    pair.right().receive(now, &first);
    without_room(&mut pair, WAIT);
    assert_eq!(sends(pair.left()), [(1, OK)]);
    post_send(&mut pair, 2);
    pair.run();
    assert_eq!(receives(pair.right()), [(7, OK)]);
    assert_eq!(pair.right().bytes(0, 64), pattern(64, 3));
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
}

#[test]
fn a_message_that_is_not_to_be_sent_is_not_lost_for_want_of_room() {
    let mut pair = unreliable();
    post_send(&mut pair, 1);
    without_room(&mut pair, MS);
    let attr = QpAttr {
        state: QpState::Sqd,
        ..pair.left().qp.query().0
    };
    pair.left().qp.modify(&attr, QpAttrMask::STATE).unwrap();
    pair.left().drain();
    without_room(&mut pair, 2 * WAIT);
    assert_eq!(sends(pair.left()), []);
    assert_eq!(pair.left().qp.poll_timeout(), None);
}
