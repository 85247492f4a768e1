//! Ten thousand ids in one engine.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_cm::{Cm, Config, Query, ResolvedAddress, TableSizes};
use portolan_provider::cm::{Ece, EventType, IdNumber, UserId};
use portolan_wire::Gid;

use crate::net::*;

const CONNECTIONS: u32 = 10_000;

/// Far longer than needed, so that only a scan over all ids (10⁸ steps) exceeds it.
const REAL_TIME_MAX: Duration = Duration::from_secs(20);

/// Time for a burst of messages, repeated until all connections have had theirs.
const PATIENCE: Duration = Duration::from_millis(100);

/// Carries all messages from one engine to the other at the sender's pace.
fn carry(from: usize, cms: &mut [Cm; 2], now: &mut Duration) {
    let end = *now + PATIENCE;
    loop {
        while let Some(transmit) = cms[from].poll_transmit() {
            cms[1 - from].handle_mad(*now, &path(1 - from), &transmit.mad);
        }
        match cms[from].poll_timeout() {
            Some(due) if due < end => *now = due.max(*now),
            _ => return,
        }
        cms[from].handle_timeout(*now);
    }
}

/// Takes the events of one type, in order.
fn events(cm: &mut Cm, event: EventType) -> VecDeque<IdNumber> {
    let mut ids = VecDeque::new();
    while let Some(next) = cm.poll_event() {
        assert_eq!(next.event, event);
        ids.push_back(next.id);
    }
    ids
}

#[test]
fn ten_thousand_connections_are_made_and_ended_at_once() {
    let started = Instant::now();
    let mut now = Duration::from_secs(1);
    let config = Config {
        max_backlog: CONNECTIONS,
        max_half_open_per_listener: CONNECTIONS as usize,
        max_half_open: CONNECTIONS as usize,
        ..Config::default()
    };
    let mut cms = [1u8, 2].map(|seed| Cm::new(config.clone(), [seed; 32]));
    let listener = cms[1].create_id(LISTENER_UID, RC).unwrap();
    cms[1]
        .bind(
            now,
            listener,
            SocketAddr::new([0, 0, 0, 0].into(), PORT),
            None,
        )
        .unwrap();
    cms[1].listen(now, listener, 0).unwrap();

    let destination = SocketAddr::new(ip(1), PORT);
    for connection in 0..CONNECTIONS {
        let id = cms[0].create_id(UserId(connection.into()), RC).unwrap();
        cms[0]
            .resolve_addr(now, id, None, destination, Duration::from_secs(1))
            .unwrap();
    }
    while let Some(Query::Address {
        id,
        query,
        destination,
        ..
    }) = cms[0].poll_query()
    {
        let source = SocketAddr::new(ip(0), 40_000);
        let dgid = Gid::from(ip(1));
        let answer = ResolvedAddress {
            source,
            destination,
            device: device(0),
            dgid,
            hop_limit: 64,
            neighbour: None,
        };
        cms[0].address_resolved(now, id, query, Ok(answer)).unwrap();
    }
    let active = events(&mut cms[0], EventType::AddrResolved);
    assert_eq!(active.len() as u32, CONNECTIONS);
    for (id, qpn) in active.iter().zip(0x100..) {
        cms[0]
            .resolve_route(now, *id, Duration::from_secs(1))
            .unwrap();
        cms[0]
            .connect(now, *id, &param(qpn, b""), Ece::default())
            .unwrap();
    }
    events(&mut cms[0], EventType::RouteResolved);
    carry(0, &mut cms, &mut now);
    let passive = events(&mut cms[1], EventType::ConnectRequest);
    assert_eq!(passive.len() as u32, CONNECTIONS);
    for (id, qpn) in passive.iter().zip(0x100..) {
        cms[1]
            .accept(
                now,
                *id,
                UserId(u64::from(id.0)),
                &param(qpn, b""),
                Ece::default(),
            )
            .unwrap();
    }
    carry(1, &mut cms, &mut now);
    for id in events(&mut cms[0], EventType::ConnectResponse) {
        cms[0].establish(now, id).unwrap();
    }
    carry(0, &mut cms, &mut now);
    assert_eq!(
        events(&mut cms[1], EventType::Established).len() as u32,
        CONNECTIONS
    );
    assert!(
        cms.iter().all(|cm| cm.poll_timeout().is_none()),
        "established ids need no timer"
    );

    for id in &active {
        cms[0].disconnect(now, *id).unwrap();
    }
    carry(0, &mut cms, &mut now);
    for id in events(&mut cms[1], EventType::Disconnected) {
        cms[1].disconnect(now, id).unwrap();
    }
    carry(1, &mut cms, &mut now);
    assert_eq!(
        events(&mut cms[0], EventType::Disconnected).len() as u32,
        CONNECTIONS
    );
    let later = now + Duration::from_secs(10);
    for cm in &mut cms {
        cm.handle_timeout(later);
        assert_eq!(
            events(cm, EventType::TimewaitExit).len() as u32,
            CONNECTIONS
        );
        assert_eq!(cm.poll_timeout(), None);
    }
    for id in active {
        cms[0].destroy_id(later, id).unwrap();
    }
    for id in passive {
        cms[1].destroy_id(later, id).unwrap();
    }
    assert_eq!(cms[0].table_sizes(), TableSizes::default());
    assert_eq!(
        cms[1].table_sizes(),
        TableSizes {
            ids: 1,
            listeners: 1,
            ..TableSizes::default()
        }
    );
    let took = started.elapsed();
    assert!(took < REAL_TIME_MAX, "took {took:?}");
}

#[test]
fn a_thousand_requests_at_once_leave_in_bursts() {
    let mut net = Net::new();
    for connection in 0..1000 {
        net.connecting(connection.into(), 0x100 + connection);
    }
    let began = net.now;
    net.run_for(Duration::from_millis(20));
    let burst = Config::default().pace_burst as usize;
    for ms in 0..8 {
        let (from, to) = (
            began + Duration::from_millis(ms),
            began + Duration::from_millis(ms + 1),
        );
        let within = net.log.iter().filter(|passing| passing.from == 0);
        let count = within
            .filter(|passing| from <= passing.at && passing.at < to)
            .count();
        assert!(count <= burst, "{count} in millisecond {ms}");
    }
    assert_eq!(
        net.log.len(),
        1000 * 2,
        "all were sent, and refused because there is no listener"
    );
}

#[test]
fn ten_thousand_unanswered_requests_are_repeated_and_given_up_by_their_timers_alone() {
    let mut net = Net::new();
    let destination = SocketAddr::new(ip(1), PORT);
    let now = net.now;
    let cm = net.cm(0);
    for connection in 0..CONNECTIONS {
        let id = cm.create_id(UserId(connection.into()), RC).unwrap();
        cm.resolve_addr(now, id, None, destination, Duration::from_secs(1))
            .unwrap();
        let Some(Query::Address { query, .. }) = cm.poll_query() else {
            panic!("no query")
        };
        let source = SocketAddr::new(ip(0), 40_000);
        let dgid = Gid::from(ip(1));
        let answer = ResolvedAddress {
            source,
            destination,
            device: device(0),
            dgid,
            hop_limit: 64,
            neighbour: None,
        };
        cm.address_resolved(now, id, query, Ok(answer)).unwrap();
        cm.resolve_route(now, id, Duration::from_secs(1)).unwrap();
        cm.connect(now, id, &param(0x100 + connection, b""), Ece::default())
            .unwrap();
        while cm.poll_event().is_some() {}
    }
    let started = Instant::now();
    let (mut sent, mut unreachable) = (0, 0);
    loop {
        while cm.poll_transmit().is_some() {
            sent += 1;
        }
        while let Some(event) = cm.poll_event() {
            assert_eq!(event.event, EventType::Unreachable);
            unreachable += 1;
        }
        match cm.poll_timeout() {
            Some(due) => cm.handle_timeout(due),
            None => break,
        }
    }
    // Sixteen requests, and a final REJ.
    assert_eq!((sent, unreachable), (CONNECTIONS * 17, CONNECTIONS));
    let took = started.elapsed();
    assert!(took < REAL_TIME_MAX, "took {took:?}");
}

#[test]
fn while_paced_messages_fill_the_queue_the_engine_waits_for_room() {
    const REQUESTS: u32 = 20;
    let mut net = Net::with_config(Config {
        max_transmits_queued: 4,
        pace_burst: 1,
        ..Config::default()
    });
    net.disturb(|_| Fate::Drop);
    for connection in 0..REQUESTS {
        net.connecting(connection.into(), 0x100 + connection);
        net.run_for(Duration::from_millis(2));
    }
    assert_eq!(net.log.len() as u32, REQUESTS);
    // All must be repeated at once, through a queue with room for few.
    let mut now = net.now + Duration::from_millis(800);
    let cm = net.cm(0);
    cm.handle_timeout(now);
    let (mut sent, mut looks) = (0, 0);
    loop {
        while cm.poll_transmit().is_some() {
            sent += 1;
        }
        if sent >= REQUESTS {
            break;
        }
        looks += 1;
        assert!(looks <= 2 * REQUESTS, "only {sent} sent: too many wake-ups");
        now = now.max(cm.poll_timeout().expect("requests are unanswered"));
        cm.handle_timeout(now);
    }
}
