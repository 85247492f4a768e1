//! RDMA_CM_EVENT_DISCONNECTED: the connection has been disconnected.

use portolan::cm::EventChannel;
use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::verbs::QpState;

use crate::harness::*;
use crate::low::*;
use crate::process::Peer;

#[test]
fn disconnected_comes_to_both_sides_without_private_data() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.give(&id);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    next(&channel, EventType::Established);
    next(&passive.channel, EventType::Established);

    child.disconnect().unwrap();
    let event = next(&channel, EventType::Disconnected);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    assert_eq!(event.conn(), Some(&ConnParam::default()));
    assert_eq!(state_of(&qp), QpState::Rts, "its owner disconnects it");
    id.disconnect().unwrap();
    assert_eq!(state_of(&qp), QpState::Err);
    let event = next(&passive.channel, EventType::Disconnected);
    assert_eq!((event.status(), event.id().number()), (0, child.number()));
    assert_eq!(event.private_data(), b"");
}

#[test]
fn disconnected_comes_with_etimedout_from_a_peer_that_stopped_answering() {
    let port = free_port();
    let ours = start_impatient(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    let (channel, id) = routed_on(EventChannel::open_on(ours).unwrap(), TCP, address);
    let verbs = Verbs::of(&id.device().unwrap());
    let _qp = verbs.give(&id);
    peer.tell("accept");
    id.connect(&param(b"")).unwrap();
    next(&channel, EventType::Established);
    assert_eq!(peer.answer(), "ok");
    let _stopped = peer.stop();
    id.disconnect().unwrap();
    let event = next(&channel, EventType::Disconnected);
    assert_eq!((event.status(), event.id().number()), (-110, id.number()));
}
