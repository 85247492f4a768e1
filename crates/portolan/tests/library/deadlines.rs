//! Deadlines are kept even if the peer is silent: its process is stopped.

use std::thread;
use std::time::{Duration, Instant};

use portolan::provider::traits::Provider;
use portolan::{Cause, Connection, Error, Step};

use crate::harness::*;
use crate::process::Peer;

/// Long enough to resolve an address and to reach the step that must time out, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(2);
/// How late a thread may wake up when tests share few cores.
const LATE: Duration = Duration::from_secs(15);

/// Checks that an operation took its whole deadline and reports that.
#[track_caller]
fn timed_out(started: Instant, step: Step, error: &Error) {
    let took = started.elapsed();
    assert!(
        (DEADLINE..DEADLINE + LATE).contains(&took),
        "took {took:?}: {error}"
    );
    assert_eq!(error.step, step, "{error}");
    let Cause::TimedOut { after_ms, .. } = error.cause else {
        panic!("{error:?}");
    };
    let reported = Duration::from_millis(after_ms);
    // An attempt's time starts when its address is known.
    let plausible = DEADLINE / 4..=took;
    assert!(plausible.contains(&reported), "after {took:?}: {error}");
    assert_eq!(error.errno(), 110, "ETIMEDOUT");
}

/// A peer process and a connection to it.
fn peer() -> (Peer, Connection) {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    peer.tell("accept");
    let connection = connector_on(ours).connect_to(address).unwrap();
    assert_eq!(peer.answer(), "ok");
    (peer, connection)
}

#[test]
fn connecting_to_a_listener_that_does_not_answer_ends_at_the_deadline() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    let stopped = peer.stop();
    let started = Instant::now();
    let connector = connector_on(ours.clone()).timeout(DEADLINE);
    let error = connector.connect_to(address).unwrap_err();
    timed_out(started, Step::Connect, &error);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let started = Instant::now();
    let error = connector.connect(&address.to_string()).unwrap_err();
    timed_out(started, Step::Connect, &error);
    // When it runs again, the abandoned requests do not confuse it.
    drop(stopped);
    peer.tell("connect 127.0.0.1:1");
    assert!(peer.answer().starts_with("error 111"), "it works");
    assert_eq!(ours.usage().ids, 0);
}

#[test]
fn a_silent_coordinator_delays_no_connect_beyond_its_deadline() {
    let port = free_port();
    let coordinator = Peer::start(port);
    let ours = start(port);
    let listener = listener_on(ours.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (active, passive) = pair_at(connector_on(ours.clone()), &listener, address, &options());
    let stopped = coordinator.stop();
    let started = Instant::now();
    let error = connector_on(ours)
        .timeout(DEADLINE)
        .connect_to(address)
        .unwrap_err();
    assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
    assert_eq!(error.step, Step::ResolveAddress);
    // The error names the culprit.
    assert!(
        matches!(error.cause, Cause::GroupSilent { stopped: true, .. }),
        "{error}"
    );
    // Established connections and the release of ports do not need the coordinator.
    passive
        .send(passive.buffer_from(b"hi").unwrap())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(&active.receive_within(PATIENCE).unwrap()[..], b"hi");
    let started = Instant::now();
    drop((active, passive, listener));
    assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
    drop(stopped);
}

#[test]
fn a_connect_waits_within_its_deadline_for_a_coordinator_that_answers_late() {
    /// Longer than one round of address resolution.
    const SILENCE: Duration = Duration::from_millis(1500);
    let port = free_port();
    let coordinator = Peer::start(port);
    let ours = start(port);
    let listener = listener_on(ours.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let stopped = coordinator.stop();
    let (active, _passive) = thread::scope(|scope| {
        let connecting =
            scope.spawn(|| pair_at(connector_on(ours), &listener, address, &options()));
        thread::sleep(SILENCE);
        drop(stopped);
        connecting.join().unwrap()
    });
    assert_eq!(active.peer_addr(), Some(address));
}

#[test]
fn accepting_ends_at_the_deadline_without_a_request_and_without_a_confirmation() {
    let port = free_port();
    let ours = start(port);
    let listener = listener_on(ours, "127.0.0.1:0");
    let started = Instant::now();
    let error = listener.accept_within(DEADLINE).unwrap_err();
    timed_out(started, Step::Accept, &error);
    assert!(error.context.local.is_some(), "{error}");

    let mut peer = Peer::start(port);
    peer.tell(&format!("connect {}", listener.local_addr().unwrap()));
    let incoming = listener.accept_within(PATIENCE).unwrap();
    let _stopped = peer.stop();
    let hasty = options().timeout(DEADLINE);
    let started = Instant::now();
    let error = incoming.accept_with(&hasty).unwrap_err();
    timed_out(started, Step::Accept, &error);
}

#[test]
fn receiving_ends_at_the_deadline_and_the_connection_still_works() {
    let (active, passive) = pair();
    let started = Instant::now();
    let error = active.receive_within(DEADLINE).unwrap_err();
    timed_out(started, Step::Receive, &error);
    passive
        .send(passive.buffer_from(b"late").unwrap())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(&active.receive_within(PATIENCE).unwrap()[..], b"late");
}

#[test]
fn several_threads_wait_each_until_its_own_deadline() {
    let (active, _passive) = pair();
    thread::scope(|scope| {
        for number in 1..=4u32 {
            let active = &active;
            scope.spawn(move || {
                let (started, deadline) = (Instant::now(), DEADLINE / 4 * number);
                active.receive_within(deadline).unwrap_err();
                let took = started.elapsed();
                assert!(
                    (deadline..deadline + LATE).contains(&took),
                    "{number}: {took:?}"
                );
            });
        }
    });
}

#[test]
fn a_transfer_is_returned_at_the_deadline_and_completes_when_the_peer_wakes() {
    let (mut peer, connection) = peer();
    let memory = peer.share(4096);
    let stopped = peer.stop();
    let buffer = connection.buffer_from(&pattern(4096, 4)).unwrap();
    let transfer = connection.write(buffer, memory).unwrap();
    let started = Instant::now();
    let transfer = match transfer.wait_within(DEADLINE) {
        Err(transfer) => transfer,
        Ok(ended) => panic!("the peer is stopped, but the transfer ended: {ended:?}"),
    };
    assert!(started.elapsed() >= DEADLINE);
    drop(stopped);
    transfer.wait().unwrap();
    let read = connection
        .read(connection.buffer(4096).unwrap(), memory)
        .unwrap();
    assert_same(&read.wait().unwrap().buffer, &pattern(4096, 4));
}

#[test]
fn closing_ends_at_the_deadline_if_the_peer_is_silent() {
    let (peer, connection) = peer();
    let _stopped = peer.stop();
    let started = Instant::now();
    let error = connection.close(DEADLINE).unwrap_err();
    timed_out(started, Step::Disconnect, &error);
}

#[test]
fn zero_is_a_deadline_that_has_passed() {
    let (active, passive) = pair();
    let error = active.receive_within(Duration::ZERO).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    passive
        .send(passive.buffer_from(b"there").unwrap())
        .unwrap()
        .wait()
        .unwrap();
    eventually("the message", || {
        active.receive_within(Duration::ZERO).is_ok()
    });
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        for _ in 0..20 {
            let error = connector()
                .timeout(timeout)
                .connect_to(address)
                .unwrap_err();
            passed(&error, Step::Connect);
            assert_eq!(error.context.remote, Some(address.into()));
        }
    }
    assert!(listener.try_accept().unwrap().is_none(), "nothing was sent");
    let other = crate::harness::listener("127.0.0.1:0");
    let error = other.accept_within(Duration::ZERO).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
}

#[track_caller]
fn passed(error: &Error, step: Step) {
    let (after_ms, retries) = (0, 0);
    assert_eq!(
        error.cause,
        Cause::TimedOut { after_ms, retries },
        "{error}"
    );
    assert_eq!(error.step, step, "{error}");
}

#[test]
fn an_accept_whose_deadline_has_passed_rejects_at_once() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        let connecting = thread::spawn(move || connector().connect_to(address));
        let incoming = listener.accept_within(PATIENCE).unwrap();
        let error = incoming
            .accept_with(&options().timeout(timeout))
            .unwrap_err();
        passed(&error, Step::Accept);
        let error = connecting.join().unwrap().unwrap_err();
        assert!(error.is_refused(), "{error}");
    }
}

#[test]
fn the_longest_duration_is_a_deadline_too() {
    let longest = options().timeout(Duration::MAX);
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (active, passive) = thread::scope(|scope| {
        let connector = connector().options(longest.clone());
        let active = scope.spawn(move || connector.connect_to(address).unwrap());
        let incoming = listener.accept_within(Duration::MAX).unwrap();
        let passive = incoming.accept_with(&longest).unwrap();
        (active.join().unwrap(), passive)
    });
    let sent = passive.send(passive.buffer_from(b"1").unwrap()).unwrap();
    sent.wait_within(Duration::MAX).unwrap().unwrap();
    assert_eq!(&active.receive_within(Duration::MAX).unwrap()[..], b"1");
    thread::scope(|scope| {
        scope.spawn(|| active.wait_disconnected(Duration::MAX).unwrap());
        passive.close(Duration::MAX).unwrap();
    });
    let provider: std::sync::Arc<dyn Provider> = provider();
    let channel = portolan::cm::EventChannel::open_on(provider).unwrap();
    let id = portolan::cm::CmId::new(&channel).unwrap();
    id.resolve_addr(None, address, Duration::MAX).unwrap();
    channel.next_event_within(Duration::MAX).unwrap();
    id.destroy(Duration::MAX).unwrap();
}
