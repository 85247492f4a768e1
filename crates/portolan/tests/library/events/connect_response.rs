//! RDMA_CM_EVENT_CONNECT_RESPONSE: generated on the active side to notify the user of a successful
//! response to a connection request. It is only generated on rdma_cm_id's that do not have a QP
//! associated with them.

use portolan::provider::cm::{ConnParam, Ece, EventType};

use crate::harness::*;
use crate::low::*;

#[test]
fn connect_response_carries_the_reply_for_an_id_without_queue_pair_to_complete() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    let ece = Ece {
        vendor_id: 1,
        options: 2,
    };
    child.set_local_ece(ece).unwrap();
    let reply = ConnParam {
        responder_resources: 2,
        initiator_depth: 1,
        rnr_retry_count: 5,
        ..param(&pattern(196, 2))
    };
    child.accept(&reply).unwrap();

    let event = next(&channel, EventType::ConnectResponse);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    let swapped = ConnParam {
        responder_resources: 1,
        initiator_depth: 2,
        // A REP has no retry count.
        retry_count: 0,
        ..reply
    };
    assert_eq!(event.conn(), Some(&swapped));
    assert_eq!((event.ece(), id.remote_ece()), (ece, ece));

    assert!(
        passive.channel.next_event_within(SHORT).is_err(),
        "the passive side waits for the user of the active one"
    );
    id.establish().unwrap();
    next(&passive.channel, EventType::Established);
    assert!(
        channel.try_next_event().unwrap().is_none(),
        "the side that calls establish gets no event"
    );
}

#[test]
fn with_a_queue_pair_there_is_no_connect_response() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let _qp = verbs.give(&id);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    next(&channel, EventType::Established);
    next(&passive.channel, EventType::Established);
}
