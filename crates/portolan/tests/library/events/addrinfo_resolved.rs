//! RDMA_CM_EVENT_ADDRINFO_RESOLVED: a name was looked up (rdma_resolve_addrinfo).

use portolan::cm::CmId;
use portolan::provider::cm::EventType;
use portolan_addrinfo::{Flags, Hints};

use super::assert_bare;
use crate::low::*;

#[test]
fn addrinfo_resolved_comes_for_numbers_and_names_and_then_the_addresses_can_be_queried() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    for node in ["127.0.0.1", "localhost"] {
        id.resolve_addrinfo(Some(node), Some("7471"), None).unwrap();
        let event = next(&channel, EventType::AddrinfoResolved);
        assert_eq!(event.id().number(), id.number());
        assert_bare(&event, 0);
        assert!(event.failure().is_none() && event.addrinfo_error().is_none());
        let found = id.query_addrinfo().unwrap();
        for info in &found {
            let to = info.dst_addr.and_then(|addr| addr.inet()).unwrap();
            assert!(to.ip().is_loopback() && to.port() == 7471, "{info:?}");
        }
    }
}

#[test]
fn the_result_can_be_taken_once_after_its_event() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let not_there = |id: &CmId| assert_eq!(id.query_addrinfo().unwrap_err().errno(), 2);
    not_there(&id);
    id.resolve_addrinfo(Some("::1"), None, None).unwrap();
    not_there(&id);
    next(&channel, EventType::AddrinfoResolved);
    assert_eq!(id.query_addrinfo().unwrap().len(), 1);
    not_there(&id);
}

#[test]
fn hints_decide_as_they_do_without_an_id() {
    let channel = channel();
    let id = CmId::with_service(&channel, UDP).unwrap();
    let hints = Hints::new().passive().flags(Flags::DNS);
    id.resolve_addrinfo(None, Some("7471"), Some(&hints))
        .unwrap();
    next(&channel, EventType::AddrinfoResolved);
    for info in id.query_addrinfo().unwrap() {
        let at = info.src_addr.and_then(|addr| addr.inet()).unwrap();
        assert!(at.ip().is_unspecified() && at.port() == 7471);
        assert!(info.dst_addr.is_none() && info.flags.contains(Flags::PASSIVE));
    }
}

#[test]
fn the_event_has_room_beside_user_written_events() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let written = (0..).take_while(|arg| id.write_event(0, *arg).is_ok());
    let written = written.take(100_000).count();
    id.resolve_addrinfo(Some("127.0.0.1"), None, None).unwrap();
    for _ in 0..written {
        next(&channel, EventType::User);
    }
    next(&channel, EventType::AddrinfoResolved);
    id.query_addrinfo().unwrap();
}
