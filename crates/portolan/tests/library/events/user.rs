//! RDMA_CM_EVENT_USER: written by the application (rdma_write_cm_event).

use std::thread;

use portolan::Cause;
use portolan::cm::CmId;
use portolan::provider::cm::{EventType, UserId};

use crate::harness::*;
use crate::low::*;

#[test]
fn user_events_carry_status_and_argument_in_the_order_of_writing() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    for (status, arg) in [(0, u64::MAX), (-5, 0), (7, 1 << 40)] {
        id.write_event(status, arg).unwrap();
        id.write_event(status, !arg).unwrap();
        for arg in [arg, !arg] {
            let event = next(&channel, EventType::User);
            assert_eq!((event.status(), event.arg()), (status, Some(arg)));
            assert_eq!(event.id().number(), id.number());
            assert_eq!((event.conn(), event.ud()), (None, None));
            assert!(event.failure().is_none(), "the writer defines its meaning");
        }
    }
}

#[test]
fn a_user_event_wakes_a_thread_that_waits_on_the_channel() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.next_event().unwrap().arg());
        thread::sleep(SHORT);
        id.write_event(0, 42).unwrap();
        assert_eq!(waiting.join().unwrap(), Some(42));
    });
}

#[test]
fn untaken_user_events_are_bounded_and_taking_some_makes_room() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let written = (0..).take_while(|arg| id.write_event(0, *arg).is_ok());
    let written = written.take(100_000).count() as u64;
    let cause = id.write_event(0, 0).unwrap_err().cause;
    assert!(
        matches!(cause, Cause::LimitReached { limit, .. } if limit == written),
        "{cause}"
    );
    assert_eq!(next(&channel, EventType::User).arg(), Some(0));
    id.write_event(0, written).unwrap();
    for arg in 1..=written {
        assert_eq!(next(&channel, EventType::User).arg(), Some(arg));
    }
}

#[test]
fn users_cannot_write_events_of_other_types() {
    let channel = provider().open_channel().unwrap();
    let id = channel.create_id(UserId(1), TCP).unwrap();
    for event in EventType::ALL.into_iter().take(16) {
        let error = channel.write_event(id, event, 0, 0).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
    }
}

#[test]
fn a_user_event_can_be_written_to_a_requests_id_only_after_it_is_accepted() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    let error = child.write_event(0, 1).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    let error = child
        .resolve_addrinfo(Some("127.0.0.1"), None, None)
        .unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    child.accept(&param(b"")).unwrap();
    child.write_event(0, 2).unwrap();
    let event = next(&passive.channel, EventType::User);
    assert_eq!(event.arg(), Some(2));
    assert_eq!(event.id().number(), child.number());
}
