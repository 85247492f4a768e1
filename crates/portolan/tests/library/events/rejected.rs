//! RDMA_CM_EVENT_REJECTED: indicates that a connection request or response was rejected by the remote
//! end point. The event status field will contain the transport specific reject reason if available.

use portolan::Cause;
use portolan::provider::cm::EventType;
use portolan::wire::cm::RejectReason;

use crate::harness::*;
use crate::low::*;

#[test]
fn rejected_carries_the_reason_if_there_is_no_listener() {
    let (channel, id) = routed("127.0.0.1:1".parse().unwrap());
    id.connect(&param(b"")).unwrap();
    let event = next(&channel, EventType::Rejected);
    assert_eq!((event.status(), event.id().number()), (8, id.number()));
    let cause = event.failure().unwrap().cause;
    assert!(
        matches!(&cause, Cause::Rejected { reason, .. } if *reason == RejectReason::INVALID_SERVICE_ID),
        "{cause}"
    );
}

#[test]
fn rejected_carries_the_refusing_peers_private_data_padded_with_zeros() {
    for (sent, reason) in [(148, 28), (5, 28), (0, 35)] {
        let passive = Passive::listen();
        let (channel, id) = routed(passive.address);
        id.connect(&param(b"")).unwrap();
        let request = passive.request();
        let data = pattern(sent, 7);
        match reason {
            35 => request.reject_ece(&data).unwrap(),
            _ => request.reject(&data).unwrap(),
        }
        let event = next(&channel, EventType::Rejected);
        assert_eq!(event.status(), reason);
        assert_eq!(event.private_data().len(), 148);
        assert_eq!(event.private_data()[..sent], data);
        assert!(event.private_data()[sent..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn rejected_comes_to_the_passive_side_whose_reply_is_refused() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    next(&channel, EventType::ConnectResponse);
    id.reject(b"changed my mind").unwrap();
    let event = next(&passive.channel, EventType::Rejected);
    assert_eq!((event.status(), event.id().number()), (28, child.number()));
    assert!(event.private_data().starts_with(b"changed my mind\0"));
}
