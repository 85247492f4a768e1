//! The death of a peer process, in every state of its connection.

use std::time::Duration;

use portolan_cm::{Config, State};
use portolan_provider::Cause;
use portolan_provider::cm::{Ece, EventType, IdNumber};
use portolan_provider::error::errno::ECONNRESET;
use portolan_wire::cm::AttributeId;

use crate::net::*;

/// The block of both hosts' communication ids.
const BLOCK: u8 = 5;

fn net() -> Net {
    let mut net = Net::with_config(Config {
        comm_id_block: BLOCK,
        ..Config::default()
    });
    net.listen(0);
    net
}

/// Reports to a host that the other host's process is dead. Returns the affected ids.
fn tell(net: &mut Net, host: usize) -> Vec<IdNumber> {
    let now = net.now;
    let found = net
        .cm(host)
        .ids_with_peer(|path, block| path.remote == ip(1 - host) && block == BLOCK);
    for id in &found {
        net.cm(host).peer_died(now, *id).unwrap();
    }
    net.drain();
    found
}

#[test]
fn a_connection_ends_on_either_side_as_if_the_peer_had_disconnected() {
    for host in [0, 1] {
        let mut net = net();
        let (active, passive) = net.connected();
        let id = [active, passive][host];
        assert_eq!(tell(&mut net, host), [id]);
        let event = net.expect(host, EventType::Disconnected);
        assert_eq!((event.id, event.status), (id, -ECONNRESET));
        net.assert_state(host, id, State::DreqRcvd);
        // A second report has no effect.
        tell(&mut net, host);
        net.expect_silence(host);
        let now = net.now;
        net.cm(host).disconnect(now, id).unwrap();
        net.assert_state(host, id, State::Timewait);
        net.run_for(Duration::from_secs(200));
        assert_eq!(
            net.sent(host, AttributeId::Dreq),
            0,
            "no message is sent to a dead peer"
        );
    }
}

#[test]
fn a_disconnect_that_waits_for_a_dead_peer_ends_at_once() {
    let mut net = net();
    let (active, _) = net.connected();
    net.disturb(|_| Fate::Drop);
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.drain();
    tell(&mut net, 0);
    let event = net.expect(0, EventType::Disconnected);
    assert_eq!(event.status, -ECONNRESET);
    net.assert_state(0, active, State::Timewait);
    let sent = net.sent(0, AttributeId::Dreq);
    net.run_for(Duration::from_secs(20));
    assert_eq!(net.sent(0, AttributeId::Dreq), sent, "nothing is repeated");
}

#[test]
fn a_side_that_waits_for_a_dead_peers_confirmation_is_rejected() {
    // The passive side has replied; the active side dies before its RTU.
    let mut net = net();
    let (_, passive) = net.replied();
    tell(&mut net, 1);
    let event = net.expect(1, EventType::Rejected);
    assert_eq!((event.id, event.status), (passive, 4));
    net.assert_state(1, passive, State::Closed);
    net.run_for(Duration::from_secs(60));
    net.expect_silence(1);
}

#[test]
fn a_side_that_has_a_dead_peers_reply_is_rejected() {
    let mut net = net();
    let (active, _) = net.replied();
    tell(&mut net, 0);
    assert_eq!(net.expect(0, EventType::Rejected).id, active);
    net.assert_state(0, active, State::Timewait);
    let now = net.now;
    let error = net.cm(0).establish(now, active).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
}

#[test]
fn a_request_of_a_dead_peer_cannot_be_accepted() {
    let mut net = net();
    let (_, child) = net.requested();
    assert_eq!(tell(&mut net, 1), [child]);
    net.assert_state(1, child, State::Closed);
    net.expect_silence(1);
    let now = net.now;
    net.cm(1).destroy_id(now, child).unwrap();
    assert_eq!(net.cm(1).table_sizes().remote_ids, 0);
}

#[test]
fn other_blocks_and_other_hosts_are_not_affected() {
    let mut net = net();
    let (active, _) = net.connected();
    assert_eq!(net.cm(0).ids_with_peer(|_, block| block != BLOCK), []);
    assert_eq!(net.cm(0).ids_with_peer(|path, _| path.remote != ip(1)), []);
    net.assert_state(0, active, State::Established);
    let waiting = net.connecting(11, 0x11);
    let named = net.cm(0).ids_with_peer(|_, _| true);
    assert_eq!(named, [active], "{waiting} does not know its peer's id yet");
}

#[test]
fn the_death_is_reported_while_messages_that_wait_to_be_sent_fill_the_queue() {
    let mut net = Net::with_config(Config {
        comm_id_block: BLOCK,
        max_transmits_queued: 2,
        ..Config::default()
    });
    net.listen(0);
    let (active, _) = net.connected();
    let other = net.resolved(11);
    let now = net.now;
    let cm = net.cm(0);
    cm.connect(now, other, &param(0x11, b""), Ece::default())
        .unwrap();
    cm.peer_died(now, active).unwrap();
    let event = cm.poll_event().expect("the end of the connection");
    assert_eq!((event.id, event.event), (active, EventType::Disconnected));
    assert_eq!(event.status, -ECONNRESET);
}
