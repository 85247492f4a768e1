//! Event channels: blocking, time, descriptors, several takers.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use portolan::cm::CmId;
use portolan::provider::cm::EventType;
use portolan::{Cause, Step};
use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::harness::*;
use crate::low::*;

#[test]
fn taking_an_event_blocks_or_times_out_or_finds_none() {
    let channel = channel();
    assert!(channel.try_next_event().unwrap().is_none());
    assert!(!readable(&channel));
    let started = Instant::now();
    let error = channel.next_event_within(SHORT).unwrap_err();
    assert!(started.elapsed() >= SHORT);
    assert_eq!(error.step, Step::Event);
    assert_eq!(
        error.cause,
        Cause::TimedOut {
            after_ms: 50,
            retries: 0
        }
    );
    assert_eq!(error.to_string(), "take event: timed out after 50 ms");

    let passive = Passive::listen();
    let id = CmId::new(&channel).unwrap();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| channel.next_event().unwrap().event_type());
        thread::sleep(SHORT);
        assert!(!blocked.is_finished());
        id.resolve_addr(None, passive.address, PATIENCE).unwrap();
        assert_eq!(blocked.join().unwrap(), EventType::AddrResolved);
    });
}

#[test]
fn the_descriptor_is_readable_exactly_while_events_wait() {
    let passive = Passive::listen();
    let channel = channel();
    let ids = [0, 1].map(|_| CmId::new(&channel).unwrap());
    for id in &ids {
        id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    }
    eventually("readiness", || readable(&channel));
    next(&channel, EventType::AddrResolved);
    eventually("the second event", || readable(&channel));
    next(&channel, EventType::AddrResolved);
    assert!(!readable(&channel));
}

#[test]
fn each_event_goes_to_one_of_the_threads_that_wait() {
    let passive = Passive::listen();
    let channel = channel();
    let ids: Vec<_> = (0..32).map(|_| CmId::new(&channel).unwrap()).collect();
    let mut taken = thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let take = |_| next(&channel, EventType::AddrResolved).id().number().0;
                    (0..8).map(take).collect::<Vec<_>>()
                })
            })
            .collect();
        for id in &ids {
            id.resolve_addr(None, passive.address, PATIENCE).unwrap();
        }
        let all = takers.into_iter().flat_map(|taker| taker.join().unwrap());
        all.collect::<Vec<_>>()
    });
    taken.sort_unstable();
    let mut numbers: Vec<_> = ids.iter().map(|id| id.number().0).collect();
    numbers.sort_unstable();
    assert_eq!(taken, numbers);
}

#[test]
fn a_channel_made_non_blocking_gives_eagain_where_it_would_wait() {
    let passive = Passive::listen();
    let channel = channel();
    let flags = fcntl_getfl(channel.as_fd()).unwrap();
    assert!(!flags.contains(OFlags::NONBLOCK), "it waits by default");
    fcntl_setfl(channel.as_fd(), flags | OFlags::NONBLOCK).unwrap();
    let error = channel.next_event().unwrap_err();
    assert_eq!(
        (error.cause.clone(), error.errno()),
        (Cause::WouldBlock, 11)
    );

    let id = CmId::new(&channel).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    // The call's own deadline takes precedence over the flag.
    next(&channel, EventType::AddrResolved);
    id.resolve_route(PATIENCE).unwrap();
    eventually("the event", || readable(&channel));
    assert_eq!(
        channel.next_event().unwrap().event_type(),
        EventType::RouteResolved
    );

    fcntl_setfl(channel.as_fd(), flags).unwrap();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| channel.next_event().unwrap().arg());
        thread::sleep(SHORT);
        assert!(!blocked.is_finished(), "it waits again");
        id.write_event(0, 5).unwrap();
        assert_eq!(blocked.join().unwrap(), Some(5));
    });
}

#[test]
fn epoll_reports_a_channel_level_triggered_and_edge_triggered() {
    let passive = Passive::listen();
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let by_level = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let by_edge = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(7);
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&by_level, channel.as_fd(), data, epoll::EventFlags::IN).unwrap();
    epoll::add(&by_edge, channel.as_fd(), data, edge).unwrap();
    let told = |epoll: &_, wait: Duration| {
        let mut events = Vec::with_capacity(4);
        let wait = wait.try_into().unwrap();
        epoll::wait(
            epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&wait),
        )
        .unwrap();
        events.len()
    };
    assert_eq!(told(&by_level, Duration::ZERO), 0);

    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    assert_eq!(
        (told(&by_level, PATIENCE), told(&by_edge, PATIENCE)),
        (1, 1)
    );
    assert_eq!(
        told(&by_level, Duration::ZERO),
        1,
        "as long as an event waits"
    );
    assert_eq!(told(&by_edge, Duration::ZERO), 0, "once for each event");
    next(&channel, EventType::AddrResolved);
    assert_eq!(told(&by_level, Duration::ZERO), 0);
    id.resolve_route(PATIENCE).unwrap();
    assert_eq!(told(&by_edge, PATIENCE), 1);
}
