//! Events that the program writes to an id (`rdma_write_cm_event(3)`), and name look-ups that end with an
//! event. Only if the provider supports them (docs/compatibility.md).

use std::thread;
use std::time::Duration;

use portolan::Cause;
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::resolve::{Flags, Hints};

use crate::pair::*;

/// Whether events can be written, which a kernel before Linux 6.18 refuses.
fn can_write(id: &CmId) -> bool {
    match id.write_event(0, 0) {
        Ok(()) => true,
        Err(error) => {
            assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
            assert_eq!(provider().name(), "kernel");
            assert!(before_linux_6_18(), "this kernel supports them");
            false
        }
    }
}

fn before_linux_6_18() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().unwrap().parse::<u32>().unwrap();
    (next(), next()) < (6, 18)
}

fn id() -> (EventChannel, CmId) {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    (channel, id)
}

#[test]
fn written_events_carry_status_and_argument_in_order() {
    let (channel, id) = id();
    if !can_write(&id) {
        return;
    }
    for (status, arg) in [(-5, u64::MAX), (7, 1 << 40)] {
        id.write_event(status, arg).unwrap();
    }
    for (status, arg) in [(0, 0), (-5, u64::MAX), (7, 1 << 40)] {
        let event = next(&channel, EventType::User);
        assert_eq!((event.status(), event.arg()), (status, Some(arg)));
        assert_eq!(event.id().number(), id.number());
        assert_eq!((event.conn(), event.ud()), (None, None));
    }
}

#[test]
fn a_written_event_wakes_a_thread_that_waits_on_the_channel() {
    let (channel, id) = id();
    if !can_write(&id) {
        return;
    }
    next(&channel, EventType::User);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.next_event_within(PATIENCE).unwrap().arg());
        thread::sleep(Duration::from_millis(50));
        id.write_event(0, 42).unwrap();
        assert_eq!(waiting.join().unwrap(), Some(42));
    });
}

#[test]
fn untaken_written_events_are_bounded() {
    let (channel, id) = id();
    if !can_write(&id) {
        return;
    }
    let written = (1..100_000).take_while(|arg| id.write_event(0, *arg).is_ok());
    let written = 1 + written.count() as u64;
    let error = id.write_event(0, 0).unwrap_err();
    assert!(
        matches!(error.cause, Cause::LimitReached { limit, .. } if limit == written),
        "{error}"
    );
    assert_eq!(next(&channel, EventType::User).arg(), Some(0));
    id.write_event(0, written).unwrap();
    for arg in 1..=written {
        assert_eq!(next(&channel, EventType::User).arg(), Some(arg));
    }
}

#[test]
fn events_can_be_written_to_a_requests_id_only_after_it_is_accepted() {
    let passive = Passive::listen();
    if !can_write(&passive.listener) {
        return;
    }
    next(&passive.channel, EventType::User);
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"")).unwrap();
    let end = passive.end(passive.request());
    let error = end.id.write_event(0, 1).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    let error = end.id.resolve_addrinfo(Some("127.0.0.1"), None, None);
    let error = error.unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    end.id.accept(&param(b"")).unwrap();
    next(&active.channel, EventType::Established);
    next(&end.channel, EventType::Established);
    end.id.write_event(0, 2).unwrap();
    let event = next(&end.channel, EventType::User);
    assert_eq!(event.arg(), Some(2));
    assert_eq!(event.id().number(), end.id.number());
}

#[test]
fn a_name_is_looked_up_with_an_event_and_its_result_queried() {
    let (channel, id) = id();
    if !can_write(&id) {
        return;
    }
    next(&channel, EventType::User);
    let text = local_ip().to_string();
    id.resolve_addrinfo(Some(&text), Some("7471"), None)
        .unwrap();
    next(&channel, EventType::AddrinfoResolved);
    let found = id.query_addrinfo().unwrap();
    let first = found[0].dst_addr.unwrap().inet().unwrap();
    assert_eq!((first.ip(), first.port()), (local_ip(), 7471));
}

#[test]
fn a_service_of_the_subnet_administrator_is_refused_on_ethernet() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    if !can_write(&id) {
        return;
    }
    let hints = Hints::new().flags(Flags::SA);
    let error = id.resolve_addrinfo(None, Some("1"), Some(&hints));
    assert_eq!(error.unwrap_err().errno(), 95, "EOPNOTSUPP");
}
