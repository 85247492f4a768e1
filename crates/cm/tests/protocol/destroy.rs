//! Destroying an id in every state: the message to the peer, and nothing left behind.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::State;
use portolan_provider::Cause;
use portolan_provider::cm::{EventType, IdNumber, UserId};
use portolan_wire::cm::{AttributeId, CmMessage, RejMessage, RejectReason};

use crate::net::*;

/// Destroys an id. Returns its messages to the peer.
fn destroy(net: &mut Net, host: usize, id: IdNumber) -> Vec<CmMessage> {
    net.drain();
    let said = net.log.len();
    let now = net.now;
    net.cm(host).destroy_id(now, id).unwrap();
    net.drain();
    assert!(net.cm(host).state(id).is_err());
    net.log[said..]
        .iter()
        .map(|passing| passing.message)
        .collect()
}

#[track_caller]
fn assert_rej(said: &[CmMessage], reason: RejectReason, message: RejMessage) {
    let [CmMessage::Rej(rej)] = said else {
        panic!("one REJ expected, found {said:?}")
    };
    assert_eq!((rej.reason, rej.message), (reason, message));
}

#[track_caller]
fn assert_kinds(said: &[CmMessage], kinds: &[AttributeId]) {
    assert_eq!(
        said.iter().map(CmMessage::attribute_id).collect::<Vec<_>>(),
        kinds
    );
}

#[test]
fn before_a_request_destroying_an_id_sends_nothing() {
    let mut net = Net::new();
    let listener = net.listen(0);
    let idle = net.cm(0).create_id(UserId(1), RC).unwrap();
    let asking = net.cm(0).create_id(UserId(2), RC).unwrap();
    let (now, destination) = (net.now, SocketAddr::new(ip(1), PORT));
    net.cm(0)
        .resolve_addr(now, asking, None, destination, Duration::from_secs(1))
        .unwrap();
    net.cm(0).destroy_id(now, asking).unwrap();
    assert_eq!(
        net.cm(0).poll_query(),
        None,
        "a query of a destroyed id is not asked"
    );
    let resolved = net.resolved(3);
    assert_eq!(destroy(&mut net, 0, idle), []);
    assert_eq!(destroy(&mut net, 0, resolved), []);
    assert_eq!(destroy(&mut net, 1, listener), []);
    assert_eq!(net.cm(0).poll_timeout(), None);
}

#[test]
fn an_unanswered_request_is_withdrawn_with_the_senders_guid() {
    let mut net = Net::new();
    net.listen(0);
    let (active, child) = net.requested();
    let said = destroy(&mut net, 0, active);
    assert_rej(&said, RejectReason::TIMEOUT, RejMessage::Other);
    net.exchange();
    net.assert_state(1, child, State::Closed);
}

#[test]
fn an_unanswered_request_is_rejected_by_its_receiver() {
    let mut net = Net::new();
    net.listen(0);
    let (active, child) = net.requested();
    let said = destroy(&mut net, 1, child);
    assert_rej(&said, RejectReason::CONSUMER_DEFINED, RejMessage::Req);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).id, active);
}

#[test]
fn a_reply_is_rejected_by_the_requester() {
    let mut net = Net::new();
    net.listen(0);
    let (active, _) = net.replied();
    let said = destroy(&mut net, 0, active);
    assert_rej(&said, RejectReason::CONSUMER_DEFINED, RejMessage::Rep);
    net.exchange();
    assert_eq!(net.expect(1, EventType::Rejected).status, 28);
}

#[test]
fn an_acceptor_that_leaves_before_the_rtu_rejects() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.replied();
    let said = destroy(&mut net, 1, passive);
    assert_rej(&said, RejectReason::CONSUMER_DEFINED, RejMessage::Other);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).id, active);
}

#[test]
fn a_connection_is_disconnected_by_one_dreq_that_is_not_repeated() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let said = destroy(&mut net, 0, active);
    assert_kinds(&said, &[AttributeId::Dreq]);
    net.exchange();
    assert_eq!(net.expect(1, EventType::Disconnected).id, passive);
    assert_eq!(net.cm(0).poll_timeout(), None);
    net.run_for(Duration::from_secs(200));
    assert_eq!(net.sent(0, AttributeId::Dreq), 1);
}

#[test]
fn an_unanswered_dreq_is_answered_and_a_sent_one_is_not_repeated() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    assert_kinds(&destroy(&mut net, 0, active), &[]);
    assert_kinds(&destroy(&mut net, 1, passive), &[AttributeId::Drep]);
}

#[test]
fn in_time_wait_and_after_it_nothing_is_sent() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    assert_kinds(&destroy(&mut net, 0, active), &[]);
    net.run_for(Duration::from_secs(10));
    net.assert_state(1, passive, State::Closed);
    assert_kinds(&destroy(&mut net, 1, passive), &[]);
}

#[test]
fn the_number_of_a_destroyed_id_is_unknown() {
    let mut net = Net::new();
    let first = net.cm(0).create_id(UserId(1), RC).unwrap();
    let now = net.now;
    net.cm(0).destroy_id(now, first).unwrap();
    assert_ne!(first, IdNumber(0));
    for _ in 0..100 {
        let next = net.cm(0).create_id(UserId(1), RC).unwrap();
        assert_ne!(next, first);
        net.cm(0).destroy_id(now, next).unwrap();
    }
    let again = net.cm(0).destroy_id(now, first).unwrap_err();
    assert_eq!(again.cause, Cause::NoSuchObject("id"));
}
