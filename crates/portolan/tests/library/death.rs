//! A peer process is killed at each stage: the survivor gets a typed error within its deadline, and no other
//! connection is affected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use portolan::provider::verbs::WcStatus;
use portolan::software::SoftwareProvider;
use portolan::wire::cm::RejectReason;
use portolan::{Cause, Connection, Options, Step};

use crate::harness::*;
use crate::process::Peer;

/// Deadline of operations that must fail in time.
const DEADLINE: Duration = Duration::from_millis(1500);
/// Time limit for a death that the kernel reports; far shorter than any retry.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A connection to a peer process that echoes.
fn echoing(provider: &Arc<SoftwareProvider>, peer: &mut Peer) -> Connection {
    let connection = connected(provider, peer, &options());
    assert_eq!(peer.ask("echo"), "ok");
    connection
}

pub(crate) fn connected(
    provider: &Arc<SoftwareProvider>,
    peer: &mut Peer,
    options: &Options,
) -> Connection {
    let address = peer.listen();
    peer.tell("accept");
    let connector = connector_on(provider.clone()).options(options.clone());
    let connection = connector.connect_to(address).unwrap();
    assert_eq!(peer.answer(), "ok");
    connection
}

#[track_caller]
fn comes_back(connection: &Connection, text: &[u8]) {
    let buffer = connection.buffer_from(text).unwrap();
    connection.send(buffer).unwrap().wait().unwrap();
    assert_eq!(&connection.receive_within(PATIENCE).unwrap()[..], text);
}

#[track_caller]
fn nobody_listens(provider: &Arc<SoftwareProvider>, address: SocketAddr) {
    let error = connector_on(provider.clone())
        .connect_to(address)
        .unwrap_err();
    match error.cause {
        Cause::Rejected { reason, .. } => assert_eq!(reason, RejectReason::INVALID_SERVICE_ID),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_killed_listener_stops_listening() {
    for peer_is_coordinator in [true, false] {
        let port = free_port();
        // The first process becomes the coordinator.
        let early = (!peer_is_coordinator).then(|| start(port));
        let mut peer = Peer::start(port);
        let ours = early.unwrap_or_else(|| start(port));
        let address = peer.listen();
        peer.kill();
        nobody_listens(&ours, address);
        // The port is free again, and connections work.
        let listener = listener_on(ours.clone(), &address.to_string());
        drop(pair_at(
            connector_on(ours.clone()),
            &listener,
            address,
            &options(),
        ));
    }
}

#[test]
fn a_peer_that_disconnects_and_then_ends_is_not_reported_as_dead() {
    // The process that waits finds the disconnect and the end of its peer at the same time.
    for round in 0..10 {
        let port = free_port();
        let mut waiting = Peer::start(port);
        let mut ending = Peer::start(port);
        let address = waiting.listen();
        waiting.tell("accept");
        assert_eq!(ending.ask(&format!("connect {address}")), "ok");
        assert_eq!(waiting.answer(), "ok");
        waiting.tell("await-end");
        thread::sleep(Duration::from_millis(20));
        let stopped = waiting.stop();
        ending.end();
        drop(stopped);
        assert_eq!(waiting.answer(), "Err(Disconnected)", "round {round}");
    }
}

#[test]
fn a_peer_killed_before_it_answers_a_request_fails_the_connect_in_time() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    let started = Instant::now();
    let connector = connector_on(ours.clone()).timeout(DEADLINE);
    let connecting = thread::spawn(move || connector.connect_to(address));
    assert_eq!(peer.ask("take"), "ok");
    peer.kill();
    let error = connecting.join().unwrap().unwrap_err();
    assert!(
        started.elapsed() < DEADLINE + PATIENCE / 10,
        "{:?}",
        started.elapsed()
    );
    assert!(
        matches!(error.cause, Cause::TimedOut { .. } | Cause::Rejected { .. }),
        "{error:?}"
    );
    assert_eq!(error.step, Step::Connect);
    nobody_listens(&ours, address);
}

#[test]
fn a_peer_killed_after_its_request_fails_the_accept_in_time() {
    let port = free_port();
    let ours = start(port);
    let listener = listener_on(ours.clone(), "127.0.0.1:0");
    let mut peer = Peer::start(port);
    peer.tell(&format!("connect {}", listener.local_addr().unwrap()));
    let incoming = listener.accept_within(PATIENCE).unwrap();
    peer.kill();
    let started = Instant::now();
    let hasty = options().timeout(DEADLINE);
    let error = incoming.accept_with(&hasty).unwrap_err();
    assert!(
        started.elapsed() < DEADLINE + PATIENCE / 10,
        "{:?}",
        started.elapsed()
    );
    assert!(
        matches!(
            error.cause,
            Cause::Disconnected | Cause::TimedOut { .. } | Cause::Rejected { .. }
        ),
        "{error:?}"
    );
    assert_eq!(error.step, Step::Accept);
}

#[test]
fn a_silent_peer_is_detected_by_the_next_send() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    // Two acknowledgement timeouts instead of eight.
    let soon = options().retry_count(1);
    let connection = connected(&ours, &mut peer, &soon);
    // Like a machine without power: nothing reports it.
    let _stopped = peer.stop();
    let error = connection
        .receive_within(Duration::from_millis(100))
        .unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error:?}");
    let sent = connection
        .send(connection.buffer_from(b"anybody?").unwrap())
        .unwrap();
    let ended = sent.wait_within(PATIENCE).expect("the retries end");
    let failed = ended.unwrap_err();
    assert_eq!(failed.error.cause, Cause::WorkFailed(WcStatus::RetryExcErr));
    assert_eq!(&failed.buffer.unwrap()[..], b"anybody?");
    let error = connection.receive_within(PATIENCE).unwrap_err();
    assert_eq!(error.cause, Cause::WorkFailed(WcStatus::RetryExcErr));
    let closed = connection.close(Duration::from_millis(100)).unwrap_err();
    assert!(matches!(closed.cause, Cause::TimedOut { .. }), "{closed:?}");
}

#[test]
fn a_peer_killed_in_the_middle_of_transfers_fails_those_and_no_others() {
    let port = free_port();
    let ours = start(port);
    let (mut victim, mut other) = (Peer::start(port), Peer::start(port));
    let unharmed = echoing(&ours, &mut other);
    let connection = connected(&ours, &mut victim, &options());
    let memory = victim.share(4 << 20);
    let written = |buffer| {
        connection
            .write(buffer, memory)
            .unwrap()
            .wait_within(PATIENCE)
    };
    let mut buffer = connection.buffer(4 << 20).unwrap();
    let killing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        victim.kill();
    });
    let failed = loop {
        match written(buffer).expect("every write ends") {
            Ok(done) => buffer = done.buffer,
            Err(failed) => break failed,
        }
        comes_back(&unharmed, b"still well");
    };
    killing.join().unwrap();
    assert_eq!(failed.error.cause, Cause::PeerDied);
    assert_eq!(failed.buffer.expect("the buffer comes back").len(), 4 << 20);
    comes_back(&unharmed, b"still well");
    drop(echoing(&ours, &mut other));
}

#[test]
fn the_coordinators_death_affects_no_other_connections_and_new_ones_are_made() {
    let port = free_port();
    let coordinator = Peer::start(port);
    let ours = start(port);
    let mut peers = [Peer::start(port), Peer::start(port)];
    let connections = peers.each_mut().map(|peer| echoing(&ours, peer));
    let addresses = peers.each_mut().map(Peer::listen);
    thread::scope(|scope| {
        for connection in &connections {
            scope.spawn(move || {
                for count in 0..500u32 {
                    comes_back(connection, &count.to_be_bytes());
                }
            });
        }
        coordinator.kill();
        // Listeners from before the coordinator's death are found, and new ones too.
        for (peer, address) in peers.iter_mut().zip(addresses) {
            peer.tell("accept");
            drop(connector_on(ours.clone()).connect_to(address).unwrap());
            assert_eq!(peer.answer(), "ok");
            comes_back(&echoing(&ours, peer), b"new");
        }
    });
    for connection in connections {
        connection.close(PATIENCE).unwrap();
    }
}

#[test]
fn a_process_that_exits_normally_disconnects_its_connections() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let connection = connected(&ours, &mut peer, &options());
    peer.end();
    connection.wait_disconnected(PATIENCE).unwrap();
}

/// Deaths that are noticed within a time.
mod against_the_clock {
    use super::*;

    #[test]
    fn a_peer_killed_while_idle_ends_the_connection_at_once() {
        for peer_is_coordinator in [true, false] {
            let port = free_port();
            let early = (!peer_is_coordinator).then(|| start(port));
            let mut peer = Peer::start(port);
            let ours = early.unwrap_or_else(|| start(port));
            let connection = connected(&ours, &mut peer, &options());
            let error = connection
                .receive_within(Duration::from_millis(100))
                .unwrap_err();
            assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error:?}");
            let killed = Instant::now();
            peer.kill();
            // The receive waits, and nothing is sent that could fail.
            let error = connection.receive_within(PATIENCE).unwrap_err();
            let took = killed.elapsed();
            assert_eq!(error.cause, Cause::PeerDied);
            assert!(took < AT_ONCE, "{took:?}");
            connection.close(AT_ONCE).unwrap();
        }
    }
}
