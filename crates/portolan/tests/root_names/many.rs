//! A thousand names at once, on one channel, with few threads; and ids dropped while their names are looked up.
//! `cargo xtask test --only leaks` also runs this under valgrind.

use std::collections::HashMap;
use std::fs;

use portolan::cm::CmId;
use portolan::provider::cm::EventType;
use portolan_addrinfo::names::pool::THREADS_MAX;

use crate::harness::PATIENCE;
use crate::low::channel;
use crate::{NUMBERED, dns, on_network};

/// Number of threads of this process.
fn threads() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|count| count.trim().parse().ok())
        .expect("a number of threads")
}

#[test]
fn a_thousand_names_on_one_channel_take_a_bounded_number_of_threads() {
    on_network(|| {
        let channel = channel();
        let make = |_| CmId::new(&channel).expect("an id");
        let ids: Vec<CmId> = (0..NUMBERED).map(make).collect();
        // Pool threads of other tests may exist already. There must never be more than the pool's own threads
        // and the timer's in addition to the threads before.
        let before = threads();
        for (number, id) in ids.iter().enumerate() {
            let name = format!("n{number}.lab.test");
            id.resolve_addrinfo_within(Some(&name), Some("7471"), None, PATIENCE * 4)
                .expect("started");
        }
        let by_number: HashMap<_, _> = (0..)
            .zip(&ids)
            .map(|(at, id)| (id.number(), (at, id)))
            .collect();
        let mut most = 0;
        for _ in 0..NUMBERED {
            let event = channel.next_event_within(PATIENCE * 4).expect("an event");
            assert_eq!(event.event_type(), EventType::AddrinfoResolved, "{event:?}");
            let (at, id) = by_number[&event.id().number()];
            let found = id.query_addrinfo().expect("found");
            let to = found[0].dst_addr.and_then(|addr| addr.inet());
            assert_eq!(to, Some((dns::address_of(at), 7471).into()));
            most = most.max(threads());
        }
        assert!(channel.try_next_event().unwrap().is_none());
        assert!(
            most <= before + THREADS_MAX + 1,
            "{most} threads, {before} before"
        );
        println!("{NUMBERED} names, {most} threads at most, {before} before");
    });
}

#[test]
fn ids_dropped_while_their_names_are_looked_up_leave_nothing() {
    on_network(|| {
        let channel = channel();
        let make = |_| CmId::new(&channel).expect("an id");
        let mut ids: Vec<CmId> = (0..NUMBERED).map(make).collect();
        for (number, id) in ids.iter().enumerate() {
            let name = format!("n{number}.lab.test");
            id.resolve_addrinfo_within(Some(&name), None, None, PATIENCE * 4)
                .expect("started");
        }
        // Some are done, some are in progress, most wait.
        let mut at = 0;
        ids.retain(|_| {
            at += 1;
            at % 10 == 0
        });
        for _ in 0..ids.len() {
            let event = channel.next_event_within(PATIENCE * 4).expect("an event");
            assert_eq!(event.event_type(), EventType::AddrinfoResolved, "{event:?}");
            assert!(ids.iter().any(|id| id.number() == event.id().number()));
        }
        assert!(
            channel.try_next_event().unwrap().is_none(),
            "dropped ids have no event"
        );
    });
}
