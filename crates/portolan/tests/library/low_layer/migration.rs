//! Ids that migrate to another channel.

use std::thread;

use portolan::Cause;
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{ConnParam, EventType};

use crate::harness::*;
use crate::low::*;

#[test]
fn a_waiting_request_and_its_events_migrate_with_its_listener() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let _qp = verbs.give(&id);
    id.connect(&ConnParam::default()).unwrap();
    eventually("the request", || readable(&passive.channel));

    let to = self::channel();
    passive.listener.migrate(&to, PATIENCE).unwrap();
    // Closing the original channel does not destroy it.
    drop(passive.channel);
    let child = next(&to, EventType::ConnectRequest).id().clone();
    let child_verbs = Verbs::of(&child.device().unwrap());
    let _child_qp = child_verbs.give(&child);
    child.accept(&ConnParam::default()).unwrap();
    next(&channel, EventType::Established);
    let event = next(&to, EventType::Established);
    assert_eq!(event.id().number(), child.number());
}

#[test]
fn migrating_moves_waiting_events_in_order_and_later_ones_follow() {
    let passive = Passive::listen();
    let (from, to) = (channel(), channel());
    let (stays, moves) = (CmId::new(&from).unwrap(), CmId::new(&from).unwrap());
    for id in [&stays, &moves] {
        id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    }
    eventually("readiness", || readable(&from));
    moves.resolve_route(PATIENCE).unwrap();
    moves.migrate(&to, PATIENCE).unwrap();
    assert!(readable(&to));
    for expected in [EventType::AddrResolved, EventType::RouteResolved] {
        let event = next(&to, expected);
        assert_eq!(event.id().number(), moves.number());
    }
    moves.connect(&param(b"")).unwrap();
    passive.request().reject(b"").unwrap();
    next(&to, EventType::Rejected);

    let event = next(&from, EventType::AddrResolved);
    assert_eq!(event.id().number(), stays.number());
    assert!(from.try_next_event().unwrap().is_none());
    drop(from);
    moves.addresses().expect("it lives on the new channel");
}

#[test]
fn migrating_waits_until_the_events_taken_before_are_acknowledged() {
    let passive = Passive::listen();
    let (from, to) = (channel(), channel());
    let id = CmId::new(&from).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    let held = next(&from, EventType::AddrResolved);
    id.resolve_route(PATIENCE).unwrap();
    thread::scope(|scope| {
        let moving = scope.spawn(|| id.migrate(&to, PATIENCE));
        // It has already migrated with its events.
        next(&to, EventType::RouteResolved);
        thread::sleep(SHORT);
        assert!(!moving.is_finished(), "an event is still held");
        drop(held);
        moving.join().unwrap().unwrap();
    });
    let held = id.write_event(0, 1).map(|()| next(&to, EventType::User));
    let error = id.migrate(&from, SHORT).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    drop(held);
    id.write_event(0, 2).unwrap();
    assert_eq!(
        next(&from, EventType::User).arg(),
        Some(2),
        "moved nevertheless"
    );
}

#[test]
fn migrating_to_the_channel_it_is_on_changes_nothing() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    id.migrate(&channel, PATIENCE).unwrap();
    id.write_event(0, 3).unwrap();
    assert_eq!(next(&channel, EventType::User).arg(), Some(3));
}

#[test]
fn an_id_cannot_migrate_to_another_providers_channel() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let foreign = EventChannel::open_on(own_provider()).unwrap();
    let error = id.migrate(&foreign, PATIENCE).unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    id.write_event(0, 4).unwrap();
    assert_eq!(
        next(&channel, EventType::User).arg(),
        Some(4),
        "it stays on its channel"
    );
}

#[test]
fn an_id_that_does_not_move_does_not_become_synchronous() {
    let id = CmId::new(&channel()).unwrap();
    id.clone().destroy(PATIENCE).unwrap();
    let error = id.migrate_to_synchronous(PATIENCE).unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
    assert!(!id.is_synchronous());
}
