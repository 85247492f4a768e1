//! Connections: made, refused, ended.

use std::net::SocketAddr;

use portolan::Access;
use portolan::cm::CmId;
use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::verbs::QpState;
use portolan::wire::cm::RejectReason;

use crate::pair::*;

/// Largest private data of a connection request, an acceptance and a rejection (rdma_connect(3),
/// rdma_accept(3), rdma_reject(3)).
const REQUEST_MAX: usize = 56;
const ACCEPT_MAX: usize = 196;
const REJECT_MAX: usize = 148;

#[test]
fn private_data_arrives_whole_both_ways_and_padded_with_zeros() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"ahoy")).unwrap();
    let event = next(&passive.channel, EventType::ConnectRequest);
    assert_eq!(event.private_data().len(), REQUEST_MAX);
    assert!(event.private_data().starts_with(b"ahoy\0"));
    let child = event.id().clone();
    drop(event);
    let end = passive.end(child);
    end.id.accept(&param(&[7; ACCEPT_MAX])).unwrap();
    let event = next(&active.channel, EventType::Established);
    assert_eq!(event.private_data(), [7; ACCEPT_MAX]);
    next(&end.channel, EventType::Established);
}

#[test]
fn depths_are_seen_from_the_receiver() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    let asked = ConnParam {
        responder_resources: 3,
        initiator_depth: 5,
        ..param(b"")
    };
    active.id.connect(&asked).unwrap();
    let event = next(&passive.channel, EventType::ConnectRequest);
    let seen = event.conn().unwrap();
    assert_eq!((seen.responder_resources, seen.initiator_depth), (5, 3));
    assert_eq!(seen.qp_num, active.qp.qpn());
}

#[test]
fn the_peer_may_write_and_may_read_if_responder_resources_permit() {
    let writes = Access::REMOTE_WRITE;
    let reads = writes | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    // The side that lets its peer read.
    for (of_active, of_passive) in [(reads, writes), (writes, reads)] {
        let with = |ours: Access, theirs: Access| ConnParam {
            responder_resources: u8::from(ours == reads),
            initiator_depth: u8::from(theirs == reads),
            ..param(b"")
        };
        let passive = Passive::listen();
        let (channel, id) = routed(passive.address);
        let active = End::new(channel, id);
        active.id.connect(&with(of_active, of_passive)).unwrap();
        let end = passive.end(passive.request());
        end.id.accept(&with(of_passive, of_active)).unwrap();
        next(&active.channel, EventType::Established);
        next(&end.channel, EventType::Established);
        let rights = |end: &End| end.qp.query().unwrap().0.access;
        assert_eq!((rights(&active), rights(&end)), (of_active, of_passive));
    }
}

#[test]
fn private_data_that_does_not_fit_is_an_error_and_the_id_stays_usable() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    assert!(active.id.connect(&param(&[0; REQUEST_MAX + 1])).is_err());
    active.id.connect(&param(&[0; REQUEST_MAX])).unwrap();
    let child = passive.request();
    assert!(child.reject(&[0; REJECT_MAX + 1]).is_err());
    child.reject(&[9; REJECT_MAX]).unwrap();
    let event = next(&active.channel, EventType::Rejected);
    assert_eq!(event.private_data(), [9; REJECT_MAX]);
}

#[test]
fn a_rejection_carries_its_reason_and_private_data() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"")).unwrap();
    passive.request().reject(b"no").unwrap();
    let event = next(&active.channel, EventType::Rejected);
    let consumer = i32::from(RejectReason::CONSUMER_DEFINED.0);
    assert_eq!(event.status(), consumer);
    assert!(event.private_data().starts_with(b"no\0"));
}

#[test]
fn a_port_without_listener_rejects_with_an_invalid_service_id() {
    let passive = Passive::listen();
    let address: SocketAddr = passive.address;
    passive.listener.destroy(PATIENCE).unwrap();
    let (channel, id) = routed(address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"")).unwrap();
    let event = next(&active.channel, EventType::Rejected);
    let invalid = i32::from(RejectReason::INVALID_SERVICE_ID.0);
    assert_eq!(event.status(), invalid);
}

#[test]
fn a_disconnect_is_reported_to_both_sides_and_both_leave_timewait() {
    let (active, passive) = connected();
    active.id.disconnect().unwrap();
    next(&passive.channel, EventType::Disconnected);
    passive.id.disconnect().unwrap();
    for end in [&active, &passive] {
        assert_eq!(end.qp.query().unwrap().0.state, QpState::Err);
    }
    next(&active.channel, EventType::Disconnected);
    next(&active.channel, EventType::TimewaitExit);
    next(&passive.channel, EventType::TimewaitExit);
}

#[test]
fn a_destroyed_id_disconnects_its_peer() {
    let (active, passive) = connected();
    let End { id, .. } = &active;
    let id: CmId = id.clone();
    drop(active);
    id.destroy(PATIENCE).unwrap();
    next(&passive.channel, EventType::Disconnected);
}
