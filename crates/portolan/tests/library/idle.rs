//! Ends of connections whose peer's program is busy elsewhere: it holds the connection and calls nothing.

use std::time::Duration;

use portolan::{Cause, Connection};

use crate::death::connected;
use crate::harness::*;
use crate::process::Peer;

#[test]
fn an_idle_peer_of_the_same_process_confirms_a_close() {
    let (active, passive) = pair();
    active.close(PATIENCE).unwrap();
    assert_eq!(passive.ended().unwrap().cause, Cause::Disconnected);
}

#[test]
fn an_idle_peer_of_another_process_confirms_a_close() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    connected(&ours, &mut peer, &options())
        .close(PATIENCE)
        .unwrap();
}

#[test]
fn messages_that_arrived_before_the_end_wait_for_an_idle_program() {
    let (active, passive) = pair();
    for number in 0..3 {
        active.send(vec![number]).unwrap().wait().unwrap();
    }
    active.close(PATIENCE).unwrap();
    for number in 0..3 {
        assert_eq!(passive.receive().unwrap()[..], [number]);
    }
    assert!(passive.receive().unwrap_err().is_disconnected());
}

/// The peer process is stopped, so it confirms nothing.
#[test]
fn waiting_for_the_end_after_the_own_disconnect_waits_for_the_peers_confirmation() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let connection = connected(&ours, &mut peer, &options());
    let stopped = peer.stop();
    connection.disconnect().unwrap();
    let early = connection.wait_disconnected(Duration::from_millis(50));
    assert!(early.unwrap_err().is_timeout());
    assert_eq!(connection.ended().unwrap().cause, Cause::Closed);
    drop(stopped);
    connection.wait_disconnected(PATIENCE).unwrap();
}

#[test]
fn many_idle_peers_confirm_and_may_be_dropped_meanwhile() {
    let (active, passive): (Vec<Connection>, Vec<Connection>) = (0..16).map(|_| pair()).unzip();
    for connection in &active {
        connection.disconnect().unwrap();
    }
    drop(passive);
    for connection in active {
        connection.close(PATIENCE).unwrap();
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn an_idle_peer_of_a_task_confirms_a_close() {
    use portolan::tasks::AsyncConnection;

    let (active, passive) = tokio::task::spawn_blocking(pair).await.unwrap();
    let passive = AsyncConnection::new(passive).unwrap();
    // The only thread of the runtime waits in this call.
    active.close(PATIENCE).unwrap();
    passive.disconnected().await.unwrap();
    assert!(passive.receive().await.unwrap_err().is_disconnected());

    let (active, passive) = tokio::task::spawn_blocking(pair).await.unwrap();
    let active = AsyncConnection::new(active).unwrap();
    active.get_ref().disconnect().unwrap();
    active.disconnected().await.unwrap();
    drop(passive);
}
