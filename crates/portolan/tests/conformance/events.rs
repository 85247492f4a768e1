//! Event channels: waiting, acknowledging, migrating.

use std::os::fd::AsFd;
use std::time::Duration;

use portolan::Cause;
use portolan::cm::EventChannel;
use portolan::provider::cm::EventType;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pair::*;

fn readable(channel: &EventChannel, within: Duration) -> bool {
    let fd = channel.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let within = Timespec::try_from(within).unwrap();
    poll(&mut fds, Some(&within)).unwrap() == 1
}

#[test]
fn a_channel_is_readable_exactly_while_an_event_waits() {
    let passive = Passive::listen();
    assert!(!readable(&passive.channel, Duration::ZERO));
    assert!(passive.channel.try_next_event().unwrap().is_none());
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"")).unwrap();
    assert!(readable(&passive.channel, PATIENCE));
    let event = passive.channel.try_next_event().unwrap().unwrap();
    assert_eq!(event.event_type(), EventType::ConnectRequest);
    assert!(!readable(&passive.channel, Duration::ZERO));
}

#[test]
fn waiting_for_an_event_ends_at_its_deadline() {
    let channel = channel();
    let error = channel
        .next_event_within(Duration::from_millis(20))
        .unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
}

#[test]
fn an_id_is_not_destroyed_before_its_events_are_acknowledged() {
    let passive = Passive::listen();
    let channel = channel();
    let id = portolan::cm::CmId::new(&channel).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    let event = next(&channel, EventType::AddrResolved);
    let error = id.destroy(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    drop(event);
}

#[test]
fn a_channel_that_closes_with_events_pending_destroys_its_ids() {
    let passive = Passive::listen();
    let mut channels = Vec::new();
    for _ in 0..4 {
        let (channel, id) = routed(passive.address);
        let active = End::new(channel, id);
        active.id.connect(&param(b"")).unwrap();
        channels.push(active);
    }
    let other = channel();
    let id = portolan::cm::CmId::new(&other).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    assert!(readable(&other, PATIENCE));
    assert!(readable(&passive.channel, PATIENCE));
    // Nobody takes the events: ids, waiting requests and channels are dropped as they are.
    drop((id, other));
    let address = passive.address;
    drop(passive);
    for active in channels {
        let event = active.channel.next_event_within(PATIENCE).unwrap();
        assert_eq!(event.event_type(), EventType::Rejected, "{event:?}");
    }
    // The port is free again.
    let channel = channel();
    let listener = portolan::cm::CmId::new(&channel).unwrap();
    listener.bind(address).unwrap();
    listener.listen(0).unwrap();
}

#[test]
fn an_id_takes_its_queued_events_to_another_channel() {
    let passive = Passive::listen();
    let from = channel();
    let id = portolan::cm::CmId::new(&from).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    assert!(readable(&from, PATIENCE));
    let to = channel();
    id.migrate(&to, PATIENCE).unwrap();
    assert!(from.try_next_event().unwrap().is_none());
    let event = next(&to, EventType::AddrResolved);
    assert_eq!(event.id().number(), id.number());
    drop(event);
    id.resolve_route(PATIENCE).unwrap();
    next(&to, EventType::RouteResolved);
}

#[test]
fn a_look_up_that_ends_while_its_id_migrates_is_reported_at_the_ids_channel() {
    const TURNS: usize = 60;
    let channels = [channel(), channel()];
    let id = portolan::cm::CmId::new(&channels[0]).unwrap();
    if let Err(error) = id.resolve_addrinfo(Some("127.0.0.1"), Some("7471"), None) {
        // A kernel before 6.18, to which a library cannot write events.
        assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
        return;
    }
    let mut at = 0;
    for turn in 0..=TURNS {
        if turn > 0 {
            // Only its end matters, not the result. Another thread reports it meanwhile.
            id.resolve_addrinfo(Some("localhost"), Some("7471"), None)
                .unwrap();
            at = turn % 2;
            id.migrate(&channels[at], PATIENCE).unwrap();
        }
        let event = channels[at].next_event_within(PATIENCE).unwrap();
        let ends = [EventType::AddrinfoResolved, EventType::AddrinfoError];
        assert!(ends.contains(&event.event_type()), "{event:?}");
        drop(event);
        let _ = id.query_addrinfo();
    }
}
