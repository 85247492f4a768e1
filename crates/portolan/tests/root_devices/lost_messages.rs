//! Messages of the connection manager that the network loses: the RTU of a peer that closes at once, so that its DREQ is the
//! first message after the reply, and the rejection of a request.

use std::process::Command;
use std::thread;
use std::time::Duration;

use portolan::{Cause, Connection, Incoming};

use crate::harness::*;
use crate::support::{Namespace, ip_batch};
use crate::{addr, on_interfaces};

/// Drops each management datagram of a type that arrives: its attribute stands 16 bytes after UDP's header of 8, the BTH of
/// 12 and the DETH of 8.
const DROP: &str = "table ip lost {
    chain in { type filter hook input priority 0; udp dport PORT @th,352,16 ATTRIBUTE counter drop; }
}";
const RTU: &str = "0x0014";
const REJ: &str = "0x0012";

#[test]
fn a_connection_that_the_peer_has_already_closed_is_accepted_and_then_ends() {
    closed_at_once(|incoming| {
        let accepted = incoming.accept_with(&options());
        assert_closed(&accepted.expect("the peer had connected"));
    });
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_accepts_a_connection_that_the_peer_has_already_closed() {
    closed_at_once(|incoming| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let accepted = incoming.accept_async(&options()).await;
            let accepted = accepted.expect("the peer had connected");
            let error = accepted.receive().await.unwrap_err();
            assert_eq!(error.cause, Cause::Disconnected, "{error}");
        });
    });
}

#[test]
fn a_rejection_that_is_lost_comes_again_and_its_request_is_reported_once() {
    beside_another_host(|peer, port| {
        let there = peer.run(move || start(port));
        let listener = peer.run(move || listener_on(there, "0.0.0.0:7476"));
        let rejecting = thread::spawn(move || {
            let incoming = listener.accept_within(PATIENCE).unwrap();
            incoming.reject(b"come back at noon").unwrap();
            listener
        });
        drop_each(port, REJ);
        let connector = connector_on(start(port));
        let connecting = thread::spawn(move || connector.connect_to(addr("10.9.6.2:7476")));
        let listener = rejecting.join().unwrap();
        eventually("a rejection is lost", has_dropped);
        nft("delete table ip lost");

        let error = connecting.join().unwrap().unwrap_err();
        assert!(error.is_refused(), "{error}");
        let again = listener.accept_within(Duration::ZERO);
        assert!(again.is_err_and(|error| error.is_timeout()));
    });
}

/// Connects to a listener on another host and closes at once. `accept` gets the request.
fn closed_at_once(accept: fn(Incoming)) {
    beside_another_host(move |peer, port| {
        peer.run(move || drop_each(port, RTU));
        let there = peer.run(move || start(port));
        let listener = peer.run(move || listener_on(there, "0.0.0.0:7476"));
        let accepting = thread::spawn(move || accept(listener.accept_within(PATIENCE).unwrap()));

        let connected = connector_on(start(port)).connect_to(addr("10.9.6.2:7476"));
        drop(connected.expect("the reply arrives"));

        accepting.join().unwrap();
        assert!(peer.run(has_dropped), "no RTU");
    });
}

/// Runs a test on a host that a pair of interfaces joins to `peer`, 10.9.6.2. It gets a UDP port for both.
fn beside_another_host(test: impl FnOnce(&Namespace, u16) + Send + 'static) {
    on_interfaces("link add tlink type veth peer name tpeer\n", move || {
        let peer = Namespace::new();
        ip_batch(&format!("link set tpeer netns {}", peer.thread_id()));
        ip_batch("addr add 10.9.6.1/24 dev tlink\nlink set tlink up");
        peer.ip("addr add 10.9.6.2/24 dev tpeer\nlink set tpeer up");
        test(&peer, free_port());
        ip_batch("link del tlink");
    });
}

/// A connection whose peer has closed it in order.
fn assert_closed(connection: &Connection) {
    let error = connection.receive_within(PATIENCE).unwrap_err();
    assert_eq!(error.cause, Cause::Disconnected, "{error}");
    connection.wait_disconnected(PATIENCE).unwrap();
}

/// Makes the host drop the management datagrams of a type.
fn drop_each(port: u16, attribute: &str) {
    let rules = DROP.replace("PORT", &port.to_string());
    nft(&rules.replace("ATTRIBUTE", attribute));
}

/// Whether the host has dropped one.
fn has_dropped() -> bool {
    !nft("list table ip lost").contains("packets 0")
}

/// Runs nft(8) with these commands. Returns what it prints.
fn nft(commands: &str) -> String {
    let output = Command::new("nft").arg(commands).output();
    let output = output.expect("nft(8) is installed");
    assert!(output.status.success(), "{commands}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
