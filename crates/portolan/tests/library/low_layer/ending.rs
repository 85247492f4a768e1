//! Destroying ids and channels: what the call waits for, and what the peer learns.

use std::thread;

use portolan::cm::CmId;
use portolan::provider::cm::EventType;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::*;

#[test]
fn a_request_that_is_dropped_unanswered_is_rejected() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    drop(passive.request());
    assert_eq!(next(&channel, EventType::Rejected).status(), 28);
}

#[test]
fn destroying_an_id_waits_until_its_events_are_acknowledged() {
    let passive = Passive::listen();
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    let event = next(&channel, EventType::AddrResolved);
    thread::scope(|scope| {
        let destroying = scope.spawn(|| id.clone().destroy(PATIENCE));
        thread::sleep(SHORT);
        assert!(!destroying.is_finished(), "the event is still held");
        drop(event);
        destroying.join().unwrap().unwrap();
    });
    let error = id.addresses().unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
}

#[test]
fn destroying_gives_up_at_its_deadline_and_the_id_is_destroyed_nevertheless() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let other = CmId::new(&channel).unwrap();
    other.resolve_addr(None, passive.address, PATIENCE).unwrap();
    let held = next(&channel, EventType::AddrResolved);
    let error = other.clone().destroy(SHORT).unwrap_err();
    assert_eq!(error.step, Step::DestroyId);
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    assert!(other.addresses().is_err());
    drop(held);
    // Events of one id do not delay another.
    id.destroy(PATIENCE).unwrap();
}

#[test]
fn a_request_is_acknowledged_on_its_listener() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let event = next(&passive.channel, EventType::ConnectRequest);
    event.id().clone().destroy(PATIENCE).unwrap();
    let Passive { listener, .. } = &passive;
    let error = listener.clone().destroy(SHORT).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    drop(event);
}

#[test]
fn closing_a_channel_rejects_its_pending_requests() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    eventually("the request", || readable(&passive.channel));
    drop(passive);
    assert_eq!(next(&channel, EventType::Rejected).status(), 28);
}

#[test]
fn a_queue_pair_that_is_destroyed_by_hand_makes_room_for_another() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    let error = id.destroy_queue_pair().unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
    let verbs = Verbs::of(&id.device().unwrap());
    let first = verbs.give(&id);
    id.destroy_queue_pair().unwrap();
    assert!(id.queue_pair().is_none());
    let error = first.query().unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
    let second = verbs.give(&id);
    assert_eq!(id.queue_pair().unwrap().qpn(), second.qpn());
    id.destroy(PATIENCE).unwrap();
}

#[test]
fn an_id_cannot_destroy_the_queue_pair_of_a_connection() {
    let (active, passive) = pair();
    let error = active.id().destroy_queue_pair().unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
    let buffer = active.buffer_from(b"still there").unwrap();
    active.send(buffer).unwrap().wait().unwrap();
    assert_eq!(&*passive.receive_within(PATIENCE).unwrap(), b"still there");
}
