//! Receiver not ready.

use std::time::Duration;

use portolan_provider::verbs::{QpState, SendOp, WcStatus};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{Syndrome, rnr_timer_us};

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;

/// Posts three sends to a peer without a receive, and waits for `wait`.
fn three_sends(options: Options, wait: Duration) -> Pair {
    let mut pair = Pair::new(options);
    let source = piece(pair.left(), 0, 2000);
    for wr_id in [1, 2, 3] {
        post(pair.left(), wr_id, SendOp::Send, &[source]);
    }
    pair.settle(wait);
    pair
}

fn post_three_receives(pair: &mut Pair) {
    let target = piece(pair.right(), 0x8000, 2000);
    for wr_id in [1, 2, 3] {
        post_recv(pair.right(), wr_id, &[target]);
    }
}

fn rnr_naks(pair: &Pair) -> Vec<SentPacket> {
    let is_rnr = |syndrome| matches!(syndrome, Syndrome::RnrNak { .. });
    let mut sent = pair.sent_by(1);
    sent.retain(|packet| {
        packet
            .headers
            .aeth
            .is_some_and(|aeth| is_rnr(aeth.syndrome))
    });
    sent
}

#[test]
fn the_peer_sends_one_rnr_nak_and_is_given_the_time_it_asks_for() {
    let min_rnr_timer = 20;
    let options = Options {
        min_rnr_timer,
        ..Options::default()
    };
    let mut pair = three_sends(options, Duration::from_millis(1));
    let naks = rnr_naks(&pair);
    assert_eq!(naks.len(), 1);
    assert_eq!(naks[0].psn.value(), 100);
    let syndrome = naks[0].headers.aeth.expect("an AETH").syndrome;
    assert_eq!(
        syndrome,
        Syndrome::RnrNak {
            timer: min_rnr_timer
        }
    );
    let sent = pair.sent_by(0).len();
    post_three_receives(&mut pair);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(receives(pair.right()), [(1, OK), (2, OK), (3, OK)]);
    let again = pair.sent_by(0)[sent];
    assert_eq!(
        (again.psn.value(), again.opcode),
        (100, Opcode::RcSendFirst)
    );
    let waited = again.at - naks[0].at;
    assert!(
        waited >= Duration::from_micros(rnr_timer_us(min_rnr_timer).into()),
        "{waited:?}"
    );
    assert_eq!(pair.left().qp.counters().timeouts, 0);
}

#[test]
fn the_sender_knows_since_when_the_peer_has_no_receive_until_the_message_gets_through() {
    let mut pair = three_sends(Options::default(), Duration::from_millis(1));
    let since = pair.left().qp.not_ready_since();
    let nak_at = rnr_naks(&pair)[0].at;
    assert!(since.is_some_and(|since| since >= nak_at), "{since:?}");
    // The retries change nothing.
    pair.settle(Duration::from_secs(1));
    assert!(rnr_naks(&pair).len() > 1);
    assert_eq!(pair.left().qp.not_ready_since(), since);
    post_three_receives(&mut pair);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(pair.left().qp.not_ready_since(), None);
}

#[test]
fn a_receiver_that_stays_unready_ends_the_connection_after_the_retries() {
    let options = Options {
        rnr_retry: 3,
        min_rnr_timer: 1,
        ..Options::default()
    };
    let mut pair = three_sends(options, Duration::from_secs(60));
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(
        sends(pair.left()),
        [(1, WcStatus::RnrRetryExcErr), (2, flushed), (3, flushed)]
    );
    assert_eq!(rnr_naks(&pair).len(), 4);
    assert_eq!(pair.states(), [QpState::Err, QpState::Rts]);
}

#[test]
fn seven_retries_mean_unlimited() {
    let options = Options {
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..Options::default()
    };
    let mut pair = three_sends(options, Duration::from_secs(2));
    assert!(rnr_naks(&pair).len() > 1000);
    assert!(pair.left().sends.is_empty());
    post_three_receives(&mut pair);
    pair.run();
    assert_eq!(pair.left().sends.len(), 3);
}

#[test]
fn the_retries_restart_when_a_message_gets_through() {
    let options = Options {
        rnr_retry: 2,
        min_rnr_timer: 20,
        ..Options::default()
    };
    let mut pair = three_sends(options, Duration::from_millis(15));
    let target = piece(pair.right(), 0x8000, 2000);
    for wr_id in [1, 2, 3] {
        post_recv(pair.right(), wr_id, &[target]);
        pair.settle(Duration::from_millis(15));
    }
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_write_with_immediate_waits_for_a_receive_before_its_last_packet_is_placed() {
    let mut pair = Pair::new(Options::default());
    pair.left().fill(0, 2000, 1);
    let (source, target) = (piece(pair.left(), 0, 2000), remote(pair.right(), 0x8000));
    post(
        pair.left(),
        1,
        SendOp::RdmaWriteWithImm(target, 1),
        &[source],
    );
    pair.settle(Duration::from_millis(1));
    assert_eq!(rnr_naks(&pair)[0].psn.value(), 101);
    assert_eq!(pair.right().bytes(0x8000 + 1024, 976), [0; 976]);
    post_recv(pair.right(), 1, &[]);
    pair.run();
    assert_eq!(
        pair.hosts[1].bytes(0x8000, 2000),
        pair.hosts[0].bytes(0, 2000)
    );
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn reads_and_writes_continue_while_no_receive_is_posted() {
    let mut pair = Pair::new(Options {
        rnr_retry: 0,
        ..Options::default()
    });
    let (local, place) = (piece(pair.left(), 0, 2000), remote(pair.right(), 0x8000));
    post(pair.left(), 1, SendOp::RdmaWrite(place), &[local]);
    post(pair.left(), 2, SendOp::RdmaRead(place), &[local]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
}
