//! Name look-ups for an id, as in rdma_resolve_addrinfo(3). Tests that need a slow name server are among those
//! with their own network.

use portolan::Cause;
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan_addrinfo::{Flags, Hints};

use crate::harness::*;
use crate::low::*;

#[test]
fn a_second_look_up_is_refused_until_the_first_ones_result_is_taken() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let resolve = || id.resolve_addrinfo(Some("127.0.0.1"), None, None);
    resolve().unwrap();
    let error = resolve().unwrap_err();
    assert_eq!(error.errno(), 16, "{error}");
    next(&channel, EventType::AddrinfoResolved);
    let error = resolve().unwrap_err();
    assert_eq!(error.errno(), 16, "{error}");
    id.query_addrinfo().unwrap();
    resolve().unwrap();
    next(&channel, EventType::AddrinfoResolved);
    assert!(channel.try_next_event().unwrap().is_none(), "one each");
}

#[test]
fn a_look_up_that_cannot_start_is_an_error_of_the_call_without_an_event() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let bound = on_loopback(&channel);
    let sa = Hints::new().flags(Flags::SA);
    let both = sa.clone().flags(Flags::DNS);
    let unknown = Hints::new().flags(Flags::from_bits_retain(1 << 20));
    let cases = [
        ("nothing asked for", &id, None, None, None, 22),
        ("SA and DNS", &id, None, Some("7"), Some(&both), 22),
        ("SA with a node", &id, Some("a"), Some("7"), Some(&sa), 95),
        ("SA without a service", &id, None, None, Some(&sa), 22),
        ("SA, not bound", &id, None, Some("7"), Some(&sa), 22),
        ("SA on RoCE", &bound, None, Some("7"), Some(&sa), 95),
        ("no port", &id, Some("::1"), Some("65536"), None, 22),
        ("NUL inside", &id, Some("a\0b"), None, None, 22),
        ("no such flag", &id, Some("::1"), None, Some(&unknown), 22),
    ];
    for (what, id, node, service, hints, errno) in cases {
        let error = id.resolve_addrinfo(node, service, hints).unwrap_err();
        assert_eq!(error.errno(), errno, "{what}: {error}");
    }
    let long = std::time::Duration::from_secs(3601);
    let error = id.resolve_addrinfo_within(Some("localhost"), None, None, long);
    assert!(matches!(
        error.unwrap_err().cause,
        Cause::InvalidArgument { .. }
    ));
    assert!(channel.try_next_event().unwrap().is_none());
    id.resolve_addrinfo(Some("::1"), None, None).unwrap();
    next(&channel, EventType::AddrinfoResolved);
}

#[test]
fn the_event_migrates_with_its_id() {
    let (from, to) = (channel(), channel());
    let id = CmId::new(&from).unwrap();
    // Once with the event waiting, once before it exists.
    for node in ["127.0.0.1", "localhost"] {
        id.resolve_addrinfo(Some(node), None, None).unwrap();
        id.migrate(&to, PATIENCE).unwrap();
        let event = next(&to, EventType::AddrinfoResolved);
        assert_eq!(event.id().number(), id.number());
        drop(event);
        id.query_addrinfo().unwrap();
        assert!(from.try_next_event().unwrap().is_none());
        id.migrate(&from, PATIENCE).unwrap();
    }
}

#[test]
fn a_destroyed_id_has_no_event_and_no_result() {
    let channel = channel();
    for node in ["127.0.0.1", "localhost"] {
        let id = CmId::new(&channel).unwrap();
        let clone = id.clone();
        id.resolve_addrinfo(Some(node), None, None).unwrap();
        id.destroy(PATIENCE).unwrap();
        assert_eq!(clone.query_addrinfo().unwrap_err().errno(), 2);
        let error = clone.resolve_addrinfo(Some(node), None, None).unwrap_err();
        assert_eq!(error.errno(), 2, "{error}");
    }
    // Look-ups end in order, so an earlier one has ended when a later one does.
    let last = CmId::new(&channel).unwrap();
    last.resolve_addrinfo(Some("localhost"), None, None)
        .unwrap();
    let event = next(&channel, EventType::AddrinfoResolved);
    assert_eq!(event.id().number(), last.number());
    assert!(channel.try_next_event().unwrap().is_none());
}

#[test]
fn a_synchronous_id_waits_for_the_result_and_gives_the_error() {
    let id = CmId::synchronous(provider(), TCP, PATIENCE).unwrap();
    id.resolve_addrinfo(Some("localhost"), Some("7471"), None)
        .unwrap();
    let last = id.last_event().unwrap();
    assert_eq!(last.event_type(), EventType::AddrinfoResolved);
    assert!(!id.query_addrinfo().unwrap().is_empty());

    let wrong = id.resolve_addrinfo(Some("localhost"), Some("no-such-service"), None);
    let error = wrong.unwrap_err();
    assert!(error.to_string().contains("no-such-service"), "{error}");
    let last = id.last_event().unwrap();
    assert_eq!(last.event_type(), EventType::AddrinfoError);
    assert!(last.addrinfo_error().is_some());
    id.resolve_addrinfo(Some("127.0.0.1"), None, None).unwrap();
}

#[test]
fn ids_and_clones_of_many_threads_each_have_their_own_look_up() {
    let channel = channel();
    let ids: Vec<CmId> = (0..64).map(|_| CmId::new(&channel).unwrap()).collect();
    std::thread::scope(|scope| {
        for ids in ids.chunks(16) {
            scope.spawn(move || {
                for id in ids {
                    id.resolve_addrinfo(Some("localhost"), Some("1"), None)
                        .unwrap();
                }
            });
        }
    });
    take_all(&channel, ids.len());
    for id in &ids {
        assert!(!id.query_addrinfo().unwrap().is_empty());
    }
}

fn take_all(channel: &EventChannel, count: usize) {
    for _ in 0..count {
        next(channel, EventType::AddrinfoResolved);
    }
    assert!(channel.try_next_event().unwrap().is_none());
}
