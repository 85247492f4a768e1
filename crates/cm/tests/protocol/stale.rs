//! Connections that one side has forgotten, and copies of old messages.

use std::time::Duration;

use portolan_cm::State;
use portolan_provider::cm::EventType;
use portolan_wire::Qpn;
use portolan_wire::cm::{AttributeId, CmMessage, RejectReason, RepRepr, ReqRepr};

use crate::net::*;

const STALE: i32 = RejectReason::STALE_CONN.0 as i32;

fn deliver(net: &mut Net, host: usize, message: impl Into<CmMessage>) -> Option<CmMessage> {
    let mut mad = [0; 256];
    message.into().emit(0x77, &mut mad).unwrap();
    let now = net.now;
    net.cm(host).handle_mad(now, &path(host), &mad);
    net.cm(host)
        .poll_transmit()
        .map(|transmit| CmMessage::parse(&transmit.mad).unwrap().1)
}

fn first_req(net: &Net) -> ReqRepr {
    match net.log[0].message {
        CmMessage::Req(req) => req,
        other => panic!("the first message is {other}"),
    }
}

#[test]
fn a_request_from_a_queue_pair_that_is_connected_is_refused_and_the_old_connection_ended() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.connected();
    // The peer has restarted and tries again with the same queue pair.
    let fresh = ReqRepr {
        local_comm_id: 0x0123_4567,
        ..first_req(&net)
    };
    let Some(CmMessage::Rej(rej)) = deliver(&mut net, 1, fresh) else {
        panic!("a REJ")
    };
    assert_eq!(
        (rej.reason, rej.remote_comm_id),
        (RejectReason::STALE_CONN, 0x0123_4567)
    );
    net.assert_state(1, passive, State::DreqSent);
    net.exchange();
    assert_eq!(net.sent(1, AttributeId::Dreq), 1);
    // The old peer answers if it still exists.
    net.expect(0, EventType::Disconnected);
}

#[test]
fn a_restarted_peer_with_the_same_number_is_refused_and_the_old_connection_ended() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.connected();
    let fresh = ReqRepr {
        local_qpn: Qpn::new(0x99),
        ..first_req(&net)
    };
    let Some(CmMessage::Rej(rej)) = deliver(&mut net, 1, fresh) else {
        panic!("a REJ")
    };
    assert_eq!(rej.reason, RejectReason::STALE_CONN);
    net.assert_state(1, passive, State::DreqSent);
}

#[test]
fn a_host_that_claims_anothers_guid_and_queue_pair_does_not_end_its_connection() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.connected();
    let mut mad = [0; 256];
    CmMessage::from(first_req(&net))
        .emit(0x77, &mut mad)
        .unwrap();
    let mut elsewhere = path(1);
    elsewhere.remote = [192, 168, 7, 99].into();
    let now = net.now;
    net.cm(1).handle_mad(now, &elsewhere, &mad);
    net.assert_state(1, passive, State::Established);
}

#[test]
fn a_reply_from_a_queue_pair_that_is_connected_is_refused_and_the_request_continues() {
    let mut net = Net::new();
    net.listen(0);
    let (old, _) = net.connected();
    let active = net.connecting(11, 0x11);
    net.disturb(|_| Fate::Drop);
    net.drain();
    let rep = RepRepr {
        local_comm_id: 0x5555,
        remote_comm_id: net.log.last().unwrap().message.local_comm_id(),
        local_qpn: Qpn::new(0x20),
        local_ca_guid: device(1).node_guid,
        ..RepRepr::default()
    };
    let Some(CmMessage::Rej(rej)) = deliver(&mut net, 0, rep) else {
        panic!("a REJ")
    };
    assert_eq!(rej.reason, RejectReason::STALE_CONN);
    net.assert_state(0, old, State::DreqSent);
    net.assert_state(0, active, State::ReqSent);
}

#[test]
fn a_stale_connection_rejection_is_followed_by_a_silent_time_wait() {
    let mut net = Net::new();
    net.listen(0);
    net.connected();
    // A second id of the active host uses the same queue pair number.
    let again = net.connecting(11, 0x10);
    net.exchange();
    let rejected = net.hosts[0]
        .events
        .iter()
        .find(|event| event.id == again)
        .unwrap();
    assert_eq!(
        (rejected.event, rejected.status),
        (EventType::Rejected, STALE)
    );
    net.assert_state(0, again, State::Timewait);
    net.run_for(Duration::from_secs(5));
    net.assert_state(0, again, State::Closed);
    let events = net.hosts[0].events.iter().filter(|event| event.id == again);
    assert_eq!(events.count(), 1, "no TIMEWAIT_EXIT without a connection");
}

#[test]
fn a_late_copy_of_the_request_in_time_wait_opens_nothing() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    net.expect(1, EventType::Disconnected);
    let copy = first_req(&net);
    let Some(CmMessage::Rej(rej)) = deliver(&mut net, 1, copy) else {
        panic!("a REJ")
    };
    assert_eq!(rej.reason, RejectReason::STALE_CONN);
    net.drain();
    net.expect_silence(1);
}

#[test]
fn a_late_copy_opens_nothing_even_when_the_id_is_destroyed_until_the_time_wait_is_over() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.connected();
    let now = net.now;
    net.cm(1).destroy_id(now, passive).unwrap();
    net.exchange();
    let copy = first_req(&net);
    let Some(CmMessage::Rej(rej)) = deliver(&mut net, 1, copy) else {
        panic!("a REJ")
    };
    assert_eq!(rej.reason, RejectReason::STALE_CONN);
    net.drain();
    net.expect_silence(1);
    net.run_for(Duration::from_secs(5));
    assert_eq!(deliver(&mut net, 1, copy), None);
    net.drain();
    net.expect(1, EventType::ConnectRequest);
}

#[test]
fn the_same_queue_pair_may_connect_again_during_the_time_wait() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    net.expect(0, EventType::Disconnected);
    net.expect(1, EventType::Disconnected);
    net.assert_state(1, passive, State::Timewait);
    net.connecting(11, 0x10);
    net.exchange();
    net.expect(1, EventType::ConnectRequest);
}

#[test]
fn an_acceptor_that_gave_up_unheard_answers_the_disconnect_of_a_peer_that_is_connected() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.replied();
    // Both the RTU and the REJ of the giving up are lost.
    let is_lost = |kind| matches!(kind, AttributeId::Rtu | AttributeId::Rej);
    net.disturb(move |passing| match is_lost(passing.kind()) {
        true => Fate::Drop,
        false => Fate::Deliver,
    });
    let now = net.now;
    net.cm(0).establish(now, active).unwrap();
    net.run_for(Duration::from_secs(200));
    net.expect(1, EventType::Unreachable);
    net.assert_state(1, passive, State::Closed);
    net.assert_state(0, active, State::Established);

    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    assert_eq!(net.sent(0, AttributeId::Dreq), 1);
    assert_eq!(net.sent(1, AttributeId::Drep), 1);
    assert_eq!(net.expect(0, EventType::Disconnected).status, 0);
    net.assert_state(0, active, State::Timewait);
    net.assert_state(1, passive, State::Closed);
    net.expect_silence(1);
}

/// Linux reports REJECTED here.
#[test]
fn a_disconnecting_side_gets_its_event_even_if_the_peer_only_refuses_a_late_copy_of_its_rep() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let rep = net.log.iter().find_map(|sent| match sent.message {
        CmMessage::Rep(rep) => Some(rep),
        _ => None,
    });
    let rep = rep.expect("a REP was sent");
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.cm(0).destroy_id(now, active).unwrap();
    let dropped = |net: &mut Net| while net.cm(0).poll_transmit().is_some() {};
    dropped(&mut net);
    let Some(CmMessage::Rej(rej)) = deliver(&mut net, 0, rep) else {
        panic!("a REJ")
    };
    assert_eq!(rej.reason, RejectReason::INVALID_COMM_ID);
    net.assert_state(1, passive, State::DreqSent);
    deliver(&mut net, 1, rej);
    net.assert_state(1, passive, State::Timewait);
    net.exchange();
    let event = net.expect(1, EventType::Disconnected);
    assert_eq!(event.status, 0);
}
