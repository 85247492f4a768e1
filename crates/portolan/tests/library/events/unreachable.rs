//! RDMA_CM_EVENT_UNREACHABLE: generated on the active side to notify the user that the remote server is
//! not reachable or unable to respond to a connection request. If it is generated in response to a UD
//! QP resolution request over InfiniBand, the status will contain an errno, if negative, or the status
//! result carried in the IB CM SIDR REP message.

use std::net::SocketAddr;

use portolan::cm::EventChannel;
use portolan::provider::cm::{EventType, Service};
use portolan::wire::cm::SidrStatus;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::*;
use crate::process::Peer;

/// Connects to what a peer offers after the peer has been stopped.
fn ask_the_stopped(service: Service, offer: &str) -> portolan::Error {
    let port = free_port();
    let ours = start_impatient(port);
    let mut peer = Peer::start(port);
    let address = peer.ask(&format!("{offer} 127.0.0.1:0")).parse().unwrap();
    let _stopped = peer.stop();
    let (channel, id) = routed_on(EventChannel::open_on(ours).unwrap(), service, address);
    id.connect(&param(b"")).unwrap();
    let event = next(&channel, EventType::Unreachable);
    assert_eq!((event.status(), event.id().number()), (-110, id.number()));
    assert!(event.private_data().is_empty());
    event.failure().unwrap()
}

#[test]
fn unreachable_with_etimedout_reports_a_peer_that_stopped_answering() {
    let error = ask_the_stopped(TCP, "listen");
    assert_eq!((error.step, error.errno()), (Step::Connect, 110));
    assert!(error.context.local.is_some() && error.context.remote.is_some());
}

/// The refusal by an address without a datagram service.
fn refusal_of(address: SocketAddr) -> (i32, Cause) {
    let (channel, id) = routed_on(channel(), UDP, address);
    id.connect(&param(b"")).unwrap();
    let event = next(&channel, EventType::Unreachable);
    (event.status(), event.failure().unwrap().cause)
}

#[test]
fn unreachable_with_the_sidr_status_reports_a_missing_datagram_service() {
    let deserted = "127.0.0.1:1".parse().unwrap();
    let unsupported = Cause::SidrRefused(SidrStatus::UNSUPPORTED);
    assert_eq!(refusal_of(deserted), (1, unsupported));
}

#[test]
fn unreachable_with_status_and_private_data_reports_a_datagram_peers_refusal() {
    let passive = Passive::listen_on(channel(), UDP);
    let (channel, id) = routed_on(channel(), UDP, passive.address);
    id.connect(&param(b"")).unwrap();
    passive.request().reject(&pattern(136, 4)).unwrap();
    let event = next(&channel, EventType::Unreachable);
    assert_eq!(event.status(), i32::from(SidrStatus::REJECT.0));
    assert_eq!(event.private_data(), pattern(136, 4));
    let error = event.failure().unwrap();
    assert_eq!(error.cause, Cause::SidrRefused(SidrStatus::REJECT));
    assert_eq!(error.errno(), 111);
}

#[test]
fn unreachable_reports_a_datagram_request_that_was_dropped_unanswered() {
    let passive = Passive::listen_on(channel(), UDP);
    let (channel, id) = routed_on(channel(), UDP, passive.address);
    id.connect(&param(b"")).unwrap();
    drop(passive.request());
    assert_eq!(next(&channel, EventType::Unreachable).status(), 2);
}

#[test]
fn unreachable_with_etimedout_reports_a_stopped_datagram_peer() {
    let error = ask_the_stopped(UDP, "serve");
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
}
