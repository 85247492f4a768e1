//! A peer that closes at once, and whose RTU is lost: its DREQ is the first message after the reply.

use std::process::Command;

use portolan::{Cause, Connection, Incoming};

use crate::harness::*;
use crate::support::{Namespace, ip_batch};
use crate::{addr, on_interfaces};

/// Drops each RTU that arrives: the attribute of a management datagram stands 16 bytes after UDP's header of 8, the BTH of
/// 12 and the DETH of 8.
const DROP_RTU: &str = "table ip rtu {
    chain in { type filter hook input priority 0; udp dport PORT @th,352,16 0x0014 counter drop; }
}";

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

/// Connects to a listener on another host and closes at once. `accept` gets the request.
fn closed_at_once(accept: fn(Incoming)) {
    on_interfaces("link add tlink type veth peer name tpeer\n", move || {
        let peer = Namespace::new();
        ip_batch(&format!("link set tpeer netns {}", peer.thread_id()));
        ip_batch("addr add 10.9.6.1/24 dev tlink\nlink set tlink up");
        peer.ip("addr add 10.9.6.2/24 dev tpeer\nlink set tpeer up");
        let port = free_port();
        peer.run(move || nft(&DROP_RTU.replace("PORT", &port.to_string())));
        let there = peer.run(move || start(port));
        let listener = peer.run(move || listener_on(there, "0.0.0.0:7476"));
        let accepting =
            std::thread::spawn(move || accept(listener.accept_within(PATIENCE).unwrap()));

        let connected = connector_on(start(port)).connect_to(addr("10.9.6.2:7476"));
        drop(connected.expect("the reply arrives"));

        accepting.join().unwrap();
        let dropped = peer.run(|| nft("list table ip rtu"));
        assert!(!dropped.contains("packets 0"), "no RTU: {dropped}");
        ip_batch("link del tlink");
    });
}

/// A connection whose peer has closed it in order.
fn assert_closed(connection: &Connection) {
    let error = connection.receive_within(PATIENCE).unwrap_err();
    assert_eq!(error.cause, Cause::Disconnected, "{error}");
    connection.wait_disconnected(PATIENCE).unwrap();
}

/// Runs nft(8) with these commands. Returns what it prints.
fn nft(commands: &str) -> String {
    let output = Command::new("nft").arg(commands).output();
    let output = output.expect("nft(8) is installed");
    assert!(output.status.success(), "{commands}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
