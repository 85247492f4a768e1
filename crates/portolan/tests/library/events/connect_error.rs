//! RDMA_CM_EVENT_CONNECT_ERROR: indicates that an error has occurred trying to establish a connection.
//! May be generated on the active or passive side of a connection.

use portolan::Step;
use portolan::provider::cm::EventType;
use portolan::provider::verbs::{QpAttr, QpAttrMask, QpState};

use crate::low::*;

#[test]
fn connect_error_comes_if_the_queue_pair_cannot_use_the_peers_reply() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.give(&id);
    id.connect(&param(b"")).unwrap();
    // Broken while the request is pending: a queue pair in ERR cannot move to RTR.
    let broken = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    qp.modify(&broken, QpAttrMask::STATE).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();

    let event = next(&channel, EventType::ConnectError);
    assert_eq!((event.status(), event.id().number()), (-22, id.number()));
    let error = event.failure().unwrap();
    assert_eq!((error.step, error.errno()), (Step::Connect, 22));
    assert_eq!(state_of(&qp), QpState::Err);

    // The peer is rejected, and the id gets no more events of this connection.
    assert_eq!(next(&passive.channel, EventType::Rejected).status(), 28);
    assert!(channel.next_event_within(SHORT).is_err());
}

#[test]
fn on_the_passive_side_the_accept_fails_if_the_queue_pair_cannot_be_used() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    let verbs = Verbs::of(&child.device().unwrap());
    let qp = verbs.give(&child);
    let broken = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    qp.modify(&broken, QpAttrMask::STATE).unwrap();
    let error = child.accept(&param(b"")).unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    // No reply has been sent, so the request can still be answered.
    assert!(channel.next_event_within(SHORT).is_err());
    child.reject(b"").unwrap();
    assert_eq!(next(&channel, EventType::Rejected).status(), 28);
}
