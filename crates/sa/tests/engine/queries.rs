//! Queries with one answer: matching, retries, deadlines and limits.

use std::collections::BTreeSet;
use std::time::Duration;

use portolan_sa::MadAddress;
use portolan_sa::engine::{Config, Engine, Failure, Problem, Request};
use portolan_wire::Gid;
use portolan_wire::sa::{PathRecord, Query, SaPacket, ServiceRecord};

use crate::administrator::{Administrator, answer};
use crate::network::{Faults, Network, Random, SA};

const DEADLINE: Duration = Duration::from_secs(60);

fn path(number: u16) -> Request {
    let dgid = Gid::from_ipv6(std::net::Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, number));
    Request::get(&Query::<PathRecord>::new().dgid(dgid).dlid(number)).expect("fits")
}

fn engine(config: Config) -> Engine {
    let mut engine = Engine::new(config, [3; 32]);
    engine.set_target(Duration::ZERO, Some(SA));
    engine
}

#[test]
fn ten_thousand_queries_with_256_in_flight_lose_none_over_a_network_that_loses_5_percent() {
    let faults = Faults::Random {
        loss: 5,
        repeat: 3,
        jitter_us: 3_000,
        random: Random(9),
    };
    let administrator = Administrator::new(Vec::new(), 0);
    let mut network = Network::new(Config::default(), 1, administrator, faults);
    let mut asked = Vec::new();
    for number in 0..10_000 {
        let now = network.now;
        let id = network
            .engine
            .submit(now, path(number), now + DEADLINE)
            .expect("room");
        asked.push((id, number));
    }
    network.run();
    assert_eq!(network.outcomes.len(), asked.len());
    network
        .outcomes
        .make_contiguous()
        .sort_by_key(|(id, _)| *id);
    for ((id, number), (over, outcome)) in asked.iter().zip(&network.outcomes) {
        assert_eq!(id, over);
        let records = outcome.as_ref().expect("answered").records::<PathRecord>();
        assert_eq!(records[0].dlid, *number, "its own answer");
    }
    assert!(network.engine.counters().retries > 500);
}

#[test]
fn queries_beyond_the_bound_wait_for_their_turn() {
    let config = Config {
        in_flight_max: 256,
        queries_max: 300,
        ..Config::default()
    };
    let mut engine = engine(config);
    let now = Duration::from_secs(1);
    for number in 0..300 {
        engine
            .submit(now, path(number), now + DEADLINE)
            .expect("room");
    }
    let refused = engine.submit(now, path(0), now + DEADLINE);
    assert!(matches!(
        refused,
        Err(Failure::LimitReached { limit: 300, .. })
    ));
    let sent: Vec<_> = std::iter::from_fn(|| engine.poll_transmit()).collect();
    assert_eq!(sent.len(), 256);
    let request = *SaPacket::new_checked(sent[0].mad.as_slice())
        .expect("right")
        .mad();
    engine.handle_mad(now, &SA, &answer(&request, 0, &[]));
    assert!(engine.poll_outcome().is_some());
    assert!(engine.poll_transmit().is_some(), "the next has its turn");
    assert!(engine.poll_transmit().is_none());
}

#[test]
fn transaction_ids_differ_and_depend_on_the_seed() {
    let draw = |seed| {
        let mut engine = Engine::new(Config::default(), [seed; 32]);
        engine.set_target(Duration::ZERO, Some(SA));
        let mut tids = BTreeSet::new();
        for number in 0..256 {
            engine
                .submit(Duration::ZERO, path(number), DEADLINE)
                .expect("room");
            let sent = engine.poll_transmit().expect("sent");
            let tid = SaPacket::new_checked(sent.mad.as_slice())
                .expect("right")
                .mad()
                .tid;
            assert_eq!(tid >> 32, 0, "the upper half is the system's");
            tids.insert(tid);
        }
        assert_eq!(tids.len(), 256);
        tids
    };
    assert_eq!(draw(1).intersection(&draw(2)).count(), 0);
}

#[test]
fn a_busy_administrator_is_queried_again_after_a_pause_until_it_answers() {
    let mut administrator = Administrator::new(Vec::new(), 0);
    administrator.busy = 4;
    let mut network = Network::new(Config::default(), 1, administrator, Faults::None);
    let start = network.now;
    network
        .engine
        .submit(start, path(1), start + DEADLINE)
        .expect("room");
    network.run();
    assert!(network.outcomes[0].1.is_ok());
    assert_eq!(
        (
            network.administrator.questions,
            network.engine.counters().busy
        ),
        (5, 4)
    );
    // Attempts of 50, 100, 200 and 400 ms.
    assert!(network.now - start >= Duration::from_millis(750));
}

#[test]
fn an_administrator_that_stays_busy_is_a_specific_error_at_the_deadline() {
    let mut administrator = Administrator::new(Vec::new(), 0);
    administrator.busy = usize::MAX;
    let mut network = Network::new(Config::default(), 1, administrator, Faults::None);
    let now = network.now;
    network
        .engine
        .submit(now, path(1), now + DEADLINE)
        .expect("room");
    network.run();
    let failure = network.outcomes[0].1.clone().expect_err("busy");
    assert!(
        matches!(
            failure,
            Failure::TimedOut {
                last: Some(Problem::Busy),
                ..
            }
        ),
        "{failure}"
    );
    assert_eq!(network.now, now + DEADLINE);
    assert!(network.administrator.questions < 100, "no storm");
}

#[test]
fn set_and_delete_are_answered_by_the_methods_of_the_standard() {
    let mut network = Network::new(
        Config::default(),
        1,
        Administrator::new(Vec::new(), 0),
        Faults::None,
    );
    let query = Query::<ServiceRecord>::new().gid(Gid([9; 16]));
    for request in [
        Request::set(&query),
        Request::delete(&query),
        Request::get(&query),
    ] {
        let now = network.now;
        network
            .engine
            .submit(now, request.expect("fits"), now + DEADLINE)
            .expect("room");
    }
    network.run();
    assert_eq!(network.outcomes.len(), 3);
    for (_, outcome) in &network.outcomes {
        let records = outcome
            .as_ref()
            .expect("answered")
            .records::<ServiceRecord>();
        assert_eq!(records[0].gid, Gid([9; 16]));
    }
}

#[test]
fn without_an_administrator_a_query_fails_at_once() {
    let mut engine = Engine::new(Config::default(), [3; 32]);
    let refused = engine.submit(Duration::ZERO, path(1), DEADLINE);
    assert_eq!(refused, Err(Failure::NoAdministrator));
    assert!(engine.poll_transmit().is_none());
}

#[test]
fn a_new_administrator_gets_the_pending_queries_at_once() {
    let mut engine = engine(Config::default());
    let now = Duration::from_secs(1);
    engine.submit(now, path(1), now + DEADLINE).expect("room");
    let first = engine.poll_transmit().expect("sent");
    engine.set_target(now, None);
    assert!(engine.poll_transmit().is_none());
    let other = MadAddress::gsi(9, 0, 0);
    engine.set_target(now, Some(other));
    let second = engine.poll_transmit().expect("sent");
    assert_eq!(second.to, other);
    let tid = |mad: &[u8]| *SaPacket::new_checked(mad).expect("right").mad();
    let (first, second) = (tid(first.mad.as_slice()), tid(second.mad.as_slice()));
    // The old administrator answers late; the new one answers correctly.
    engine.handle_mad(now, &SA, &answer(&first, 0, &[]));
    assert!(engine.poll_outcome().is_none());
    engine.handle_mad(now, &other, &answer(&second, 0, &[]));
    assert!(
        engine
            .poll_outcome()
            .is_some_and(|(_, outcome)| outcome.is_ok())
    );
}

#[test]
fn a_query_times_out_with_the_reason_that_its_administrator_left() {
    let mut engine = engine(Config::default());
    let now = Duration::from_secs(1);
    engine.submit(now, path(1), now + DEADLINE).expect("room");
    engine.set_target(now, None);
    assert_eq!(engine.poll_timeout(), Some(now + DEADLINE));
    engine.handle_timeout(now + DEADLINE);
    let (_, outcome) = engine.poll_outcome().expect("over");
    let last = Some(Problem::NoAdministrator);
    assert!(matches!(outcome, Err(Failure::TimedOut { last: found, .. }) if found == last));
}

#[test]
fn a_driver_timeout_makes_the_retry_come_at_its_time_and_not_sooner() {
    let mut engine = engine(Config::default());
    let now = Duration::from_secs(1);
    engine.submit(now, path(1), now + DEADLINE).expect("room");
    let sent = engine.poll_transmit().expect("sent");
    let tid = SaPacket::new_checked(sent.mad.as_slice())
        .expect("right")
        .mad()
        .tid;
    let early = now + Duration::from_millis(1);
    engine.handle_send_failure(early, tid | 0xAB << 40, 110);
    engine.handle_timeout(early);
    assert!(engine.poll_transmit().is_none(), "no storm");
    assert_eq!(engine.poll_timeout(), Some(now + sent.answer_within));
    engine.handle_timeout(now + sent.answer_within);
    let again = engine.poll_transmit().expect("sent again");
    assert_eq!(again.mad, sent.mad, "a retry is the same transaction");
    assert!(again.answer_within > sent.answer_within);
}

#[test]
fn an_undeliverable_query_is_retried_and_finally_fails_with_the_reason() {
    let mut engine = engine(Config::default());
    let (mut now, start) = (Duration::from_secs(1), Duration::from_secs(1));
    engine.submit(now, path(1), start + DEADLINE).expect("room");
    let mut tries = 0;
    while let Some(due) = engine.poll_timeout() {
        while let Some(sent) = engine.poll_transmit() {
            let tid = SaPacket::new_checked(sent.mad.as_slice())
                .expect("right")
                .mad()
                .tid;
            engine.handle_send_failure(now, tid, 105);
            tries += 1;
        }
        now = due.max(now);
        engine.handle_timeout(now);
        assert!(tries < 200, "no storm");
    }
    let (_, outcome) = engine.poll_outcome().expect("over");
    let failure = outcome.expect_err("not delivered");
    let last = Some(Problem::NotDelivered { errno: 105 });
    assert!(matches!(failure, Failure::TimedOut { last: found, .. } if found == last));
    assert!(tries > 5);
}

#[test]
fn a_query_that_is_cancelled_has_no_outcome_and_leaves_nothing() {
    let mut engine = engine(Config::default());
    let id = engine
        .submit(Duration::ZERO, path(1), DEADLINE)
        .expect("room");
    let sent = engine.poll_transmit().expect("sent");
    engine.cancel(Duration::ZERO, id);
    let request = *SaPacket::new_checked(sent.mad.as_slice())
        .expect("right")
        .mad();
    engine.handle_mad(Duration::ZERO, &SA, &answer(&request, 0, &[]));
    assert!(engine.poll_outcome().is_none() && engine.is_empty());
    assert_eq!(engine.poll_timeout(), None);
    assert_eq!(engine.counters().unknown_transaction, 1);
}
