//! Ids without a user's channel: calls wait for their events and return their errors.

use std::thread;
use std::time::Instant;

use portolan::cm::CmId;
use portolan::provider::cm::{EventType, JoinKind};
use portolan::wire::cm::{RejectReason, SidrStatus};
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::*;

/// A synchronous id.
fn synchronous() -> CmId {
    CmId::synchronous(provider(), TCP, PATIENCE).unwrap()
}

fn last(id: &CmId) -> Option<EventType> {
    Some(id.last_event()?.event_type())
}

#[test]
fn each_call_returns_with_its_event_and_keeps_it() {
    let passive = Passive::listen();
    let id = synchronous();
    assert!(id.is_synchronous() && id.last_event().is_none());
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    assert_eq!(last(&id), Some(EventType::AddrResolved));
    id.resolve_route(PATIENCE).unwrap();
    assert_eq!(last(&id), Some(EventType::RouteResolved));
    let verbs = Verbs::of(&id.device().unwrap());
    let _qp = verbs.give(&id);

    thread::scope(|scope| {
        let connecting = scope.spawn(|| id.connect(&param(b"ahoy")));
        let child = passive.request();
        assert!(!connecting.is_finished(), "the peer has not answered");
        child.accept(&param(b"welcome")).unwrap();
        connecting.join().unwrap().unwrap();
        next(&passive.channel, EventType::Established);
        let event = id.last_event().unwrap();
        assert_eq!(
            (event.event_type(), event.status()),
            (EventType::Established, 0)
        );
        assert!(event.private_data().starts_with(b"welcome\0"));

        let ending = scope.spawn(|| id.disconnect());
        next(&passive.channel, EventType::Disconnected);
        assert!(!ending.is_finished(), "the peer has not answered");
        child.disconnect().unwrap();
        ending.join().unwrap().unwrap();
        assert_eq!(last(&id), Some(EventType::Disconnected));
    });
    id.destroy(PATIENCE).unwrap();
}

#[test]
fn a_call_returns_the_error_of_the_event_that_ended_it() {
    let id = synchronous();
    let (source, away) = ("[::1]:0".parse().unwrap(), "[2001:db8::1]:7471");
    let error = id
        .resolve_addr(Some(source), away.parse().unwrap(), PATIENCE)
        .unwrap_err();
    assert_eq!(error.step, Step::ResolveAddress);
    assert_eq!(last(&id), Some(EventType::AddrError));
    assert_eq!(error.errno(), -id.last_event().unwrap().status());

    let passive = Passive::listen();
    let id = synchronous();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let error = thread::scope(|scope| {
        let connecting = scope.spawn(|| id.connect(&param(b"")));
        passive.request().reject(b"no").unwrap();
        connecting.join().unwrap().unwrap_err()
    });
    assert_eq!(
        (error.step, error.errno()),
        (Step::Connect, 111),
        "ECONNREFUSED"
    );
    assert!(
        matches!(&error.cause, Cause::Rejected { reason, .. } if *reason == RejectReason::CONSUMER_DEFINED),
        "{error}"
    );
    assert_eq!(error.context.remote, Some(passive.address.into()));
}

#[test]
fn a_call_waits_no_longer_than_the_ids_time_limit() {
    let passive = Passive::listen();
    let id = CmId::synchronous(provider(), TCP, SHORT).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let started = Instant::now();
    let error = id.connect(&param(b"")).unwrap_err();
    assert!(started.elapsed() >= SHORT);
    let (after_ms, retries) = (50, 0);
    assert_eq!(error.cause, Cause::TimedOut { after_ms, retries });
    assert_eq!(error.step, Step::Connect);
}

#[test]
fn a_call_that_cannot_start_fails_at_once() {
    let id = synchronous();
    let started = Instant::now();
    let error = id.connect(&param(b"")).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    assert!(started.elapsed() < PATIENCE);
    assert!(id.last_event().is_none());
}

#[test]
fn datagram_ids_wait_for_the_answer_but_not_after_giving_one() {
    let (listener, id) = (
        CmId::synchronous(provider(), UDP, PATIENCE).unwrap(),
        CmId::synchronous(provider(), UDP, PATIENCE).unwrap(),
    );
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.addresses().unwrap().local.unwrap().inet().unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    thread::scope(|scope| {
        let asking = scope.spawn(|| id.connect(&param(b"")));
        let child = listener.next_request(PATIENCE).unwrap();
        child.accept(&param(b"here")).unwrap();
        asking.join().unwrap().unwrap();
        assert!(
            id.last_event()
                .unwrap()
                .private_data()
                .starts_with(b"here\0")
        );
    });
    drop(listener);

    let id = CmId::synchronous(provider(), UDP, PATIENCE).unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    id.resolve_route(PATIENCE).unwrap();
    let error = id.connect(&param(b"")).unwrap_err();
    assert_eq!(error.cause, Cause::SidrRefused(SidrStatus::UNSUPPORTED));
}

#[test]
fn joining_waits_for_the_group() {
    let id = CmId::synchronous(provider(), UDP, PATIENCE).unwrap();
    id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), PATIENCE)
        .unwrap();
    let group = "239.3.2.1".parse().unwrap();
    let kind = JoinKind::SendOnlyFullMember;
    id.join_multicast(group, kind, 5).unwrap();
    let event = id.last_event().unwrap();
    assert_eq!(event.event_type(), EventType::MulticastJoin);
    assert_eq!(event.membership().unwrap().context(), 5);
    id.leave_multicast(group, PATIENCE).unwrap();
}

#[test]
fn an_id_becomes_synchronous_by_migrating_to_no_channel_and_asynchronous_by_migrating_to_one() {
    let passive = Passive::listen();
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    id.migrate_to_synchronous(PATIENCE).unwrap();
    let error = id.migrate_to_synchronous(PATIENCE).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    assert_eq!(error.errno(), 22);
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    assert_eq!(last(&id), Some(EventType::AddrResolved));
    assert!(channel.try_next_event().unwrap().is_none());

    id.migrate(&channel, PATIENCE).unwrap();
    assert!(!id.is_synchronous() && id.last_event().is_none());
    id.resolve_route(PATIENCE).unwrap();
    next(&channel, EventType::RouteResolved);
}
