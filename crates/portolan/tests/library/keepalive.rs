//! Keepalive: an idle connection probes its peer, if its options say so. A stopped peer process behaves like
//! one whose machine is gone: it answers nothing.

use std::thread;
use std::time::{Duration, Instant};

use portolan::provider::verbs::Counter;
use portolan::{Cause, Connection, Keepalive, Options};

use crate::death::connected;
use crate::harness::*;
use crate::process::Peer;

/// Shorter than all retries of a queue pair.
const KEEPALIVE: Keepalive = Keepalive::new(Duration::from_millis(300), Duration::from_millis(700));
/// Several probes and answers long.
const IDLE: Duration = Duration::from_secs(2);

fn watchful() -> Options {
    options().keepalive(Some(KEEPALIVE))
}

fn sent(connection: &Connection) -> u64 {
    let counters = connection.counters().unwrap();
    let packets = |counter: &&Counter| counter.name == "tx_packets";
    counters
        .iter()
        .find(packets)
        .expect("the counter exists")
        .value
}

#[track_caller]
fn is_silent(error: &portolan::Error, connection: &Connection, stopped: Instant) {
    let Cause::PeerSilent { after_ms } = error.cause else {
        panic!("{error}");
    };
    let least = (KEEPALIVE.interval + KEEPALIVE.timeout).as_millis() as u64;
    assert!(after_ms >= least, "{error}");
    assert!(stopped.elapsed() < PATIENCE);
    assert_eq!(error.errno(), 110, "ETIMEDOUT");
    assert_eq!(error.context.remote, connection.peer_addr().map(Into::into));
}

#[test]
fn an_idle_connection_whose_peer_stops_answering_ends_within_the_time_limit() {
    let port = free_port();
    let provider = start(port);
    let mut peer = Peer::start(port);
    let connection = connected(&provider, &mut peer, &watchful());
    let stopped = peer.stop();
    let since = Instant::now();
    thread::scope(|scope| {
        // Another caller waits for something else.
        scope.spawn(|| connection.wait_disconnected(PATIENCE).unwrap());
        is_silent(&connection.receive().unwrap_err(), &connection, since);
    });
    let buffer = connection.buffer_from(b"too late").unwrap();
    let failed = connection.send(buffer).unwrap().wait().unwrap_err();
    is_silent(&failed.error, &connection, since);
    assert!(failed.buffer.is_some());
    is_silent(&connection.try_receive().unwrap_err(), &connection, since);
    connection.disconnect().unwrap();
    // The peer runs again and answers the disconnect. The reason stays the same.
    drop(stopped);
    let resumed = Instant::now();
    while resumed.elapsed() < Duration::from_secs(1) {
        is_silent(&connection.ended().unwrap(), &connection, since);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_caller_that_polls_occasionally_gets_the_error_too() {
    let port = free_port();
    let provider = start(port);
    let mut peer = Peer::start(port);
    let connection = connected(&provider, &mut peer, &watchful());
    let _stopped = peer.stop();
    let mut ended = None;
    eventually("an end", || {
        ended = connection.try_receive().err();
        ended.is_some()
    });
    let error = ended.unwrap();
    assert!(matches!(error.cause, Cause::PeerSilent { .. }), "{error}");
}

#[test]
fn an_idle_connection_whose_peer_answers_continues() {
    let (near, far) = pair_with(&watchful(), &options());
    let before = sent(&near);
    let error = near.receive_within(IDLE).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    assert!(sent(&near) >= before + 2, "the peer was probed");
    // The peer's program notices nothing.
    assert!(far.try_receive().unwrap().is_none());
    let posted = near.send(near.buffer_from(b"ahoy").unwrap()).unwrap();
    assert_eq!(&far.receive_within(PATIENCE).unwrap()[..], b"ahoy");
    posted.wait().unwrap();
}

/// The program looks at the connection only between two pieces of work, each longer than a peer may be silent.
#[test]
fn a_peer_whose_answer_waits_while_the_program_works_is_not_considered_dead() {
    let work = KEEPALIVE.interval + KEEPALIVE.timeout;
    let (near, far) = pair_with(&watchful(), &options());
    for _ in 0..3 {
        let posted = far.send(far.buffer_from(b"ahoy").unwrap()).unwrap();
        posted.wait().unwrap();
        thread::sleep(work);
        let message = near.receive_within(PATIENCE);
        assert_eq!(&message.unwrap()[..], b"ahoy");
        assert_eq!(near.ended().map(|error| error.to_string()), None);
    }
}

#[test]
fn without_the_option_nothing_is_sent() {
    let (near, far) = pair();
    let before = [sent(&near), sent(&far)];
    let error = near.receive_within(IDLE).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    assert_eq!([sent(&near), sent(&far)], before);
}

#[test]
fn a_peer_that_is_slow_to_receive_is_not_considered_dead() {
    let none = options().receive_depth(0);
    let (near, far) = pair_with(&watchful(), &none);
    let posted = near.send(near.buffer_from(b"patience").unwrap()).unwrap();
    // The message waits for a receive much longer than a peer may be silent.
    let Err(posted) = posted.wait_within(IDLE) else {
        panic!("no receive is posted");
    };
    let taking = far.post_receive(far.buffer(64).unwrap()).unwrap();
    assert_eq!(taking.wait().unwrap().length, 8);
    posted.wait().unwrap();
}

#[test]
fn the_caller_can_use_the_whole_send_queue() {
    let shallow = watchful().send_depth(1);
    let (near, far) = pair_with(&shallow, &options());
    for _ in 0..3 {
        // Posted beside a probe, whose answer may be outstanding.
        let _ = near.receive_within(KEEPALIVE.interval);
        let posted = near.send(near.buffer_from(b"mine").unwrap()).unwrap();
        assert_eq!(&far.receive_within(PATIENCE).unwrap()[..], b"mine");
        posted.wait().unwrap();
    }
}

#[test]
fn zero_and_excessive_times_are_refused() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    for (interval, timeout, named) in [
        (Duration::ZERO, day, "keepalive interval"),
        (day * 2, day, "keepalive interval"),
        (day, Duration::ZERO, "keepalive timeout"),
        (day, Duration::MAX, "keepalive timeout"),
    ] {
        let keepalive = Some(Keepalive::new(interval, timeout));
        let with = options().keepalive(keepalive);
        let error = connector().options(with).connect_to(address).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_waiting_task_learns_that_its_peer_stopped_answering() {
    use portolan::tasks::AsyncConnection;

    let port = free_port();
    let provider = start(port);
    let mut peer = Peer::start(port);
    let connection = connected(&provider, &mut peer, &watchful());
    let runtime = ::tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let connection = AsyncConnection::new(connection).unwrap();
        let _stopped = peer.stop();
        let since = Instant::now();
        let (message, ended) = ::tokio::join!(connection.receive(), connection.disconnected());
        is_silent(&message.unwrap_err(), connection.get_ref(), since);
        ended.unwrap();
    });
}
