//! Lost, repeated and late packets.

use std::time::Duration;

use portolan_provider::verbs::{QpState, SendOp, WcStatus};
use portolan_roce::engine::FlowConfig;
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AethRepr, NakCode, Syndrome};
use portolan_wire::rocev2::Headers;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;

/// A write, two reads, a send and a write with immediate, each of 5,000 bytes in several packets to its own
/// place.
fn mixture(pair: &mut Pair) {
    pair.left().fill(SOURCE, 15_000, 1);
    pair.right().fill(SOURCE, 10_000, 2);
    let place = |offset| remote(&pair.hosts[1], offset);
    let local = |offset| piece(&pair.hosts[0], offset, 5000);
    let receive = piece(&pair.hosts[1], TARGET + 5000, 5000);
    let requests = [
        (SendOp::RdmaWrite(place(TARGET)), local(SOURCE)),
        (SendOp::RdmaRead(place(SOURCE)), local(TARGET)),
        (SendOp::Send, local(SOURCE + 5000)),
        (SendOp::RdmaRead(place(SOURCE + 5000)), local(TARGET + 5000)),
        (
            SendOp::RdmaWriteWithImm(place(TARGET + 10_000), 77),
            local(SOURCE + 10_000),
        ),
    ];
    post_recv(pair.right(), 1, &[receive]);
    post_recv(pair.right(), 2, &[]);
    for (wr_id, (op, sge)) in (0..).zip(requests) {
        post(pair.left(), wr_id, op, &[sge]);
    }
}

fn assert_mixture_arrived(pair: &mut Pair, what: &str) {
    let all: Vec<_> = (0..5).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(sends(pair.left()), all, "{what}");
    assert_eq!(receives(pair.right()), [(1, OK), (2, OK)], "{what}");
    assert_eq!(
        pair.hosts[1].bytes(TARGET, 15_000),
        pair.hosts[0].bytes(SOURCE, 15_000),
        "{what}"
    );
    assert_eq!(
        pair.hosts[0].bytes(TARGET, 10_000),
        pair.hosts[1].bytes(SOURCE, 10_000),
        "{what}"
    );
    assert_eq!(pair.states(), [QpState::Rts; 2], "{what}");
}

/// Number of packets of the mixture without loss.
fn packets_without_loss() -> usize {
    let mut pair = Pair::new(Options::default());
    mixture(&mut pair);
    pair.run();
    assert_mixture_arrived(&mut pair, "nothing lost");
    pair.network.log.len()
}

#[test]
fn any_packet_may_be_lost_repeated_or_late() {
    let late = Duration::from_micros(300);
    for action in [Action::Drop, Action::Repeat, Action::Delay(late)] {
        for victim in 0..packets_without_loss() {
            let mut pair = Pair::new(Options::default());
            mixture(&mut pair);
            let mut index = 0;
            pair.network.script = Some(Box::new(move |_| {
                index += 1;
                if index == victim + 1 {
                    action
                } else {
                    Action::Pass
                }
            }));
            pair.run();
            assert_mixture_arrived(&mut pair, &format!("{action:?} of packet {victim}"));
        }
    }
}

#[test]
fn any_two_packets_may_be_lost() {
    let packets = packets_without_loss();
    for first in 0..packets {
        for second in first + 1..packets + 4 {
            let mut pair = Pair::new(Options::default());
            mixture(&mut pair);
            let mut index = 0;
            pair.network.script = Some(Box::new(move |_| {
                index += 1;
                if index == first + 1 || index == second + 1 {
                    Action::Drop
                } else {
                    Action::Pass
                }
            }));
            pair.run();
            assert_mixture_arrived(&mut pair, &format!("packets {first} and {second} lost"));
        }
    }
}

#[test]
fn a_gap_is_reported_once_and_repaired_without_waiting_for_a_timer() {
    let mut pair = Pair::new(Options::default());
    drop_once(&mut pair, |sent| sent.opcode == Opcode::RcWriteFirst);
    let (source, target) = (
        piece(pair.left(), SOURCE, 20_000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    let naks: Vec<_> = pair
        .sent_by(1)
        .into_iter()
        .filter(is_sequence_nak)
        .collect();
    assert_eq!(naks.len(), 1);
    assert_eq!(naks[0].psn.value(), 100);
    assert_eq!(pair.left().qp.counters().timeouts, 0);
    assert_eq!(pair.left().qp.counters().retransmits, 20);
}

/// Linux's rdma_rxe retransmits at once only if an acknowledgement arrived since its last retransmission.
#[test]
fn before_each_report_of_a_gap_earlier_packets_are_acknowledged() {
    let mut pair = Pair::new(Options::default());
    let mut sent_of_111 = 0;
    let mut first = true;
    pair.network.script = Some(Box::new(move |sent| {
        let psn = if sent.from == 0 { sent.psn.value() } else { 0 };
        sent_of_111 += u32::from(psn == 111);
        // Loses 105 the first time and 111 the second time.
        let is_lost = psn == 105 && std::mem::take(&mut first) || psn == 111 && sent_of_111 == 2;
        if is_lost { Action::Drop } else { Action::Pass }
    }));
    let (source, target) = (
        piece(pair.left(), SOURCE, 20_000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    let answers: Vec<_> = pair
        .sent_by(1)
        .iter()
        .map(|sent| (sent.psn.value(), is_sequence_nak(sent)))
        .collect();
    let reports = [(104, false), (105, true), (110, false), (111, true)];
    assert_eq!(answers[..4], reports, "{answers:?}");
    assert_eq!(pair.left().qp.counters().timeouts, 0);
}

#[test]
fn lost_read_data_are_requested_again_from_the_gap_on() {
    let mut pair = Pair::new(Options::default());
    pair.right().fill(SOURCE, 10_000, 9);
    let mut responses = 0;
    // The data arrive one by one, so that each packet after the gap could trigger another request.
    pair.network.script = Some(Box::new(move |sent| {
        responses += u32::from(sent.from == 1);
        match (sent.from, responses) {
            (0, _) => Action::Pass,
            (_, 4) => Action::Drop,
            (_, index) => Action::Delay(Duration::from_micros(10) * index),
        }
    }));
    let (target, source) = (
        piece(pair.left(), TARGET, 10_000),
        remote(pair.right(), SOURCE),
    );
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(
        pair.hosts[0].bytes(TARGET, 10_000),
        pair.hosts[1].bytes(SOURCE, 10_000)
    );
    let requests: Vec<_> = pair
        .sent_by(0)
        .iter()
        .map(|packet| (packet.psn.value(), packet.headers.reth.expect("a RETH")))
        .map(|(psn, reth)| (psn, reth.va - source.addr, reth.dma_len))
        .collect();
    assert_eq!(
        requests,
        [(100, 0, 10_000), (103, 3 * 1024, 10_000 - 3 * 1024)]
    );
    assert_eq!(pair.left().qp.counters().timeouts, 0);
    assert_eq!(pair.right().qp.counters().duplicates, 1);
}

#[test]
fn a_repeated_request_is_acknowledged_again_but_not_executed_again() {
    let mut pair = Pair::new(Options::default());
    drop_once(&mut pair, |sent| sent.opcode == Opcode::RcAck);
    let target = piece(pair.right(), TARGET, 100);
    post_recv(pair.right(), 1, &[target]);
    post_recv(pair.right(), 2, &[target]);
    let source = piece(pair.left(), SOURCE, 100);
    post(pair.left(), 1, SendOp::Send, &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(receives(pair.right()), [(1, OK)]);
    assert_eq!(pair.right().placements, 1);
    assert_eq!(pair.right().qp.counters().duplicates, 1);
}

#[test]
fn a_repeated_write_before_a_read_does_not_make_the_read_look_lost() {
    let mut pair = Pair::new(Options::default());
    pair.network.script = Some(Box::new(|sent| {
        if sent.from == 1 {
            Action::Drop
        } else {
            Action::Pass
        }
    }));
    let (local, place) = (
        piece(pair.left(), SOURCE, 1000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(place), &[local]);
    post(pair.left(), 2, SendOp::RdmaRead(place), &[local]);
    post(pair.left(), 3, SendOp::RdmaWrite(place), &[local]);
    // Everything is executed, but no answer arrives.
    pair.settle(Duration::from_millis(50));
    // The retransmissions arrive one by one, each answered before the next.
    pair.network.script = Some(Box::new(|sent| {
        let index = sent.psn.diff(Psn::new(100)).unsigned_abs();
        Action::Delay(Duration::from_micros(20) * index)
    }));
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    let counters = pair.left().qp.counters();
    assert_eq!(
        (counters.timeouts, counters.retransmits),
        (1, 3),
        "each is retransmitted once"
    );
}

#[test]
fn a_silent_peer_ends_the_connection_at_the_deadline_and_flushes_later_work() {
    for (timeout, retry_cnt) in [(14, 7), (17, 7), (14, 1), (14, 0)] {
        let mut pair = Pair::new(Options {
            timeout,
            retry_cnt,
            ..Options::default()
        });
        pair.network.script = Some(Box::new(|_| Action::Drop));
        let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
        post_recv(pair.left(), 9, &[source]);
        for wr_id in [1, 2] {
            post(pair.left(), wr_id, SendOp::RdmaWrite(target), &[source]);
        }
        pair.run();
        let failed = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(sends(pair.left()), failed);
        assert_eq!(receives(pair.left()), [(9, WcStatus::WrFlushErr)]);
        assert_eq!(pair.left().qp.state(), QpState::Err);
        // IBTA 9.7.6.1.3: 4.096 us times 2^timeout, for each try.
        let one = Duration::from_nanos(4096 << timeout);
        let expected = one * (u32::from(retry_cnt) + 1);
        assert!(
            pair.now.abs_diff(expected) < Duration::from_micros(100),
            "{:?}",
            pair.now
        );
        let sent = pair.sent_by(0).len();
        assert_eq!(
            sent > 2,
            retry_cnt > 0,
            "with no retries each is sent once, not {sent}"
        );
    }
}

#[test]
fn the_wait_doubles_until_it_is_the_local_ack_timeout() {
    let mut pair = Pair::new(Options {
        timeout: 16,
        ..Options::default()
    });
    pair.network.script = Some(Box::new(|_| Action::Drop));
    let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    let sent = pair.sent_by(0);
    let waits: Vec<_> = sent
        .windows(2)
        .map(|pair| (pair[1].at - pair[0].at).as_millis())
        .collect();
    // 100 ms before any measurement; then 4.096 us times 2^16.
    assert_eq!(waits[..4], [100, 200, 268, 268], "{waits:?}");
}

#[test]
fn the_deadline_restarts_with_each_acknowledgement() {
    let mut pair = Pair::new(Options {
        timeout: 14,
        retry_cnt: 1,
        ..Options::default()
    });
    let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
    for wr_id in 0..10 {
        drop_once(&mut pair, |_| true);
        post(pair.left(), wr_id, SendOp::RdmaWrite(target), &[source]);
        pair.run();
        pair.now += Duration::from_secs(1);
    }
    assert_eq!(pair.left().sends.len(), 10);
    assert_eq!(pair.left().qp.state(), QpState::Rts);
}

#[test]
fn a_slow_connection_lives_as_long_as_it_makes_progress() {
    let flow = FlowConfig {
        window_initial_bytes: 4096,
        window_max_bytes: 4096,
        ack_interval_bytes: 1,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        timeout: 14,
        retry_cnt: 1,
        flow,
        ..Options::default()
    });
    // The first flight is stretched, so that acknowledgements arrive one by one and something is always in
    // flight.
    pair.network.script = Some(Box::new(|sent| {
        let index = sent.psn.diff(Psn::new(100)).clamp(0, 3).unsigned_abs();
        Action::Delay(Duration::from_millis(5) + Duration::from_millis(1) * index)
    }));
    let (source, target) = (
        piece(pair.left(), SOURCE, 100_000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    // Without progress it would have ended after two local ACK timeouts, 134 ms.
    assert!(pair.now > Duration::from_millis(250), "{:?}", pair.now);
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(pair.left().qp.counters().retransmits, 0);
}

#[test]
fn without_a_timeout_a_request_waits_forever() {
    let mut pair = Pair::new(Options {
        timeout: 0,
        ..Options::default()
    });
    pair.network.script = Some(Box::new(|_| Action::Drop));
    let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(pair.left().qp.poll_timeout(), None);
    assert_eq!(pair.sent_by(0).len(), 1);
    assert!(pair.left().sends.is_empty());
}

#[test]
fn reported_gaps_use_up_the_retries_if_nothing_gets_through() {
    let mut pair = Pair::new(Options {
        timeout: 0,
        retry_cnt: 3,
        ..Options::default()
    });
    pair.network.script = Some(Box::new(|sent| {
        if sent.opcode == Opcode::RcWriteFirst {
            Action::Drop
        } else {
            Action::Pass
        }
    }));
    let (source, target) = (
        piece(pair.left(), SOURCE, 3000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    // The responder reports a gap once. The retransmission loses its first packet too, and gets no report.
    let psn = pair.sent_by(0)[0].psn;
    for _ in 0..3 {
        assert_eq!(pair.left().qp.state(), QpState::Rts);
        pair.left().receive_headers(&sequence_nak(psn), &[]);
        pair.run();
    }
    assert_eq!(sends(pair.left()), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn lost_packets_are_retransmitted_long_before_the_local_ack_timeout() {
    let mut pair = Pair::new(Options {
        timeout: 19,
        ..Options::default()
    });
    let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
    post(pair.left(), 0, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    drop_once(&mut pair, |_| true);
    let start = pair.now;
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(pair.left().sends.len(), 2);
    assert!(
        pair.now - start < Duration::from_millis(20),
        "{:?}",
        pair.now - start
    );
}

#[test]
fn heavy_loss_shrinks_the_window_and_everything_arrives() {
    let mut pair = Pair::new(Options {
        seed: 42,
        ..Options::default()
    });
    pair.network.faults = Faults {
        lost_permille: 100,
        repeated_permille: 50,
        delayed_permille: 100,
    };
    pair.left().fill(SOURCE, 400_000, 1);
    let (source, target) = (
        piece(pair.left(), SOURCE, 400_000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(
        pair.hosts[1].bytes(TARGET, 400_000),
        pair.hosts[0].bytes(SOURCE, 400_000)
    );
}

/// Loses the next packet that `which` selects.
fn drop_once(pair: &mut Pair, which: impl Fn(&SentPacket) -> bool + 'static) {
    let mut done = false;
    pair.network.script = Some(Box::new(move |sent| {
        if !done && which(sent) {
            done = true;
            return Action::Drop;
        }
        Action::Pass
    }));
}

fn is_sequence_nak(sent: &SentPacket) -> bool {
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    sent.headers.aeth.is_some_and(|aeth| aeth.syndrome == nak)
}

fn sequence_nak(psn: Psn) -> Headers {
    let mut headers = Headers::new(Opcode::RcAck, Host::qpn(0), psn);
    let syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
    headers.aeth = Some(AethRepr { syndrome, msn: 0 });
    headers
}
