//! Acknowledgements: how few suffice, and which ones are ignored.

use std::time::Duration;

use portolan_provider::verbs::{SendFlags, SendOp, WcStatus};
use portolan_roce::engine::{DropReason, FlowConfig};
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AethRepr, CREDITS_UNLIMITED, Syndrome};
use portolan_wire::rocev2::Headers;

use crate::harness::*;

const TARGET: u64 = 0x8_0000;

fn acks(pair: &Pair) -> Vec<SentPacket> {
    let mut sent = pair.sent_by(1);
    sent.retain(|packet| packet.opcode == Opcode::RcAck);
    sent
}

fn write(pair: &mut Pair, wr_id: u64, len: u32, flags: SendFlags) {
    let (source, target) = (piece(pair.left(), 0, len), remote(pair.right(), TARGET));
    post_with(
        pair.left(),
        wr_id,
        SendOp::RdmaWrite(target),
        &[source],
        flags,
    );
}

#[test]
fn requests_that_arrive_together_are_acknowledged_together() {
    let mut pair = Pair::new(Options::default());
    for wr_id in 0..10 {
        write(&mut pair, wr_id, 8, SendFlags::SIGNALED);
    }
    pair.run();
    assert_eq!(pair.left().sends.len(), 10);
    let acks = acks(&pair);
    assert_eq!(acks.len(), 1);
    let aeth = acks[0].headers.aeth.expect("an AETH");
    assert_eq!(acks[0].psn, Psn::new(109));
    assert_eq!(
        aeth,
        AethRepr {
            syndrome: Syndrome::Ack {
                credits: CREDITS_UNLIMITED
            },
            msn: 10
        }
    );
}

#[test]
fn only_the_end_of_a_message_requests_an_acknowledgement_while_the_window_is_wide() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 20_000, SendFlags::SIGNALED);
    pair.run();
    let sent = pair.sent_by(0);
    let asking: Vec<_> = sent
        .iter()
        .map(|packet| packet.headers.bth.ack_request)
        .collect();
    assert_eq!(asking.iter().filter(|asks| **asks).count(), 1);
    assert_eq!(asking.last(), Some(&true));
}

#[test]
fn a_long_message_requests_acknowledgements_in_the_middle() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 500_000, SendFlags::SIGNALED);
    pair.run();
    let mut asking = pair.sent_by(0);
    let sent = asking.len();
    asking.retain(|packet| packet.headers.bth.ack_request);
    let gaps = asking.windows(2).map(|pair| pair[1].psn.diff(pair[0].psn));
    let interval = (FlowConfig::default().ack_interval_bytes / 1024) as i32;
    assert!(gaps.max().expect("several") <= interval);
    assert!(
        asking.len() * 8 < sent,
        "{} of {sent} packets request an acknowledgement",
        asking.len()
    );
    assert!(acks(&pair).len() <= asking.len());
}

#[test]
fn a_responder_acknowledges_regularly_without_a_request() {
    let mut pair = Pair::new(Options::default());
    // Packets that do not request an acknowledgement: the middle of an endless write.
    let (address, mtu) = (remote(pair.right(), TARGET), 1024);
    for index in 0..300u32 {
        let opcode = if index == 0 {
            Opcode::RcWriteFirst
        } else {
            Opcode::RcWriteMiddle
        };
        let mut headers = Headers::new(opcode, Host::qpn(1), Psn::new(100 + index));
        headers.reth = (index == 0).then_some(portolan_wire::eth::RethRepr {
            va: address.addr,
            rkey: address.rkey,
            dma_len: 400 * mtu,
        });
        pair.right().receive_headers(&headers, &[0; 1024]);
        pair.transmit();
    }
    assert_eq!(
        acks(&pair)
            .iter()
            .map(|ack| ack.psn.value())
            .collect::<Vec<_>>(),
        [227, 355]
    );
}

#[test]
fn no_more_is_in_flight_than_the_window_allows() {
    let flow = FlowConfig {
        window_initial_bytes: 10 * 1024,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        flow,
        ..Options::default()
    });
    write(&mut pair, 1, 100_000, SendFlags::SIGNALED);
    pair.transmit();
    let sent = pair.sent_by(0);
    assert_eq!(sent.len(), 10);
    assert!(
        sent[9].headers.bth.ack_request,
        "the last packet before the wait requests an acknowledgement"
    );
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::Success)]);
}

#[test]
fn the_window_grows_with_acknowledgements() {
    let flow = FlowConfig {
        window_initial_bytes: 10 * 1024,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        flow,
        ..Options::default()
    });
    write(&mut pair, 1, 500_000, SendFlags::SIGNALED);
    pair.run();
    // Packets that leave together, grouped by flight.
    let mut flights: Vec<(Duration, usize)> = Vec::new();
    for packet in pair.sent_by(0) {
        match flights.last_mut() {
            Some((at, count)) if *at == packet.at => *count += 1,
            _ => flights.push((packet.at, 1)),
        }
    }
    let counts: Vec<_> = flights.iter().map(|(_, count)| *count).take(5).collect();
    assert_eq!(counts, [10, 20, 40, 80, 160]);
}

#[test]
fn the_window_bounds_the_answers_to_reads_too() {
    let flow = FlowConfig {
        window_initial_bytes: 10 * 1024,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        flow,
        ..Options::default()
    });
    let (target, source) = (piece(pair.left(), 0, 100_000), remote(pair.right(), TARGET));
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.transmit();
    let asked: u32 = pair
        .sent_by(0)
        .iter()
        .map(|packet| packet.headers.reth.expect("a RETH").dma_len)
        .sum();
    assert_eq!(asked, 10 * 1024);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::Success)]);
}

#[test]
fn the_last_posted_request_requests_an_acknowledgement_even_if_unsignaled() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 8, SendFlags::empty());
    pair.run();
    assert_eq!(acks(&pair).len(), 1);
    assert_eq!(pair.left().qp.poll_timeout(), None);
}

#[test]
fn acknowledgements_of_unsent_packets_are_ignored() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 8, SendFlags::SIGNALED);
    pair.transmit();
    for ghost in [101, 102, 5000] {
        pair.left()
            .receive_headers(&ack(ghost, Syndrome::Ack { credits: 31 }), &[]);
    }
    assert!(pair.left().sends.is_empty());
    assert_eq!(pair.left().qp.counters().drops(DropReason::GhostAck), 3);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::Success)]);
}

#[test]
fn old_acknowledgements_are_ignored() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 8, SendFlags::SIGNALED);
    pair.run();
    write(&mut pair, 2, 8, SendFlags::SIGNALED);
    pair.transmit();
    use portolan_wire::eth::NakCode::*;
    for syndrome in [
        Syndrome::Ack { credits: 31 },
        Syndrome::Nak(InvalidRequest),
        Syndrome::Nak(PsnSequenceError),
        Syndrome::RnrNak { timer: 0 },
    ] {
        pair.left().receive_headers(&ack(100, syndrome), &[]);
    }
    assert_eq!(pair.left().qp.counters().drops(DropReason::StaleAck), 4);
    pair.run();
    assert_eq!(
        sends(pair.left()),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
}

#[test]
fn reserved_syndromes_are_ignored() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 8, SendFlags::SIGNALED);
    pair.transmit();
    for reserved in [0x45, 0x7F, 0x80] {
        pair.left()
            .receive_headers(&ack(100, Syndrome::Reserved(reserved)), &[]);
    }
    assert_eq!(pair.left().qp.counters().drops(DropReason::Malformed), 3);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::Success)]);
}

#[test]
fn an_acknowledged_connection_is_quiet() {
    let mut pair = Pair::new(Options::default());
    write(&mut pair, 1, 5000, SendFlags::SIGNALED);
    pair.settle(Duration::from_millis(5));
    assert_eq!(pair.left().qp.poll_timeout(), None);
    assert_eq!(pair.right().qp.poll_timeout(), None);
    let sent = pair.network.log.len();
    pair.run();
    assert_eq!(pair.network.log.len(), sent);
}

/// An acknowledgement for the left host.
fn ack(psn: u32, syndrome: Syndrome) -> Headers {
    let mut headers = Headers::new(Opcode::RcAck, Host::qpn(0), Psn::new(psn));
    headers.aeth = Some(AethRepr { syndrome, msn: 0 });
    headers
}

#[test]
fn a_read_that_the_window_holds_back_does_not_wait_for_a_timeout() {
    let flow = FlowConfig {
        window_initial_bytes: 10 * 1024,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        flow,
        ..Options::default()
    });
    // The unsignaled write fills more than half of the window.
    write(&mut pair, 1, 8 * 1024, SendFlags::empty());
    let (source, target) = (remote(pair.right(), TARGET), piece(pair.left(), 0, 20_000));
    post(pair.left(), 2, SendOp::RdmaRead(source), &[target]);
    pair.run();
    assert_eq!(sends(pair.left()), [(2, WcStatus::Success)]);
    assert_eq!(pair.left().qp.counters().timeouts, 0);
    assert_eq!(pair.left().qp.counters().retransmits, 0);
}
