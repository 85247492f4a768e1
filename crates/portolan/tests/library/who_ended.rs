//! Who ended a connection, as errors report it.

use std::thread;
use std::time::Duration;

use portolan::cm::EventChannel;
use portolan::provider::cm::EventType;
use portolan::{Cause, Error, SharedReceiveQueue, Transfer};

use crate::harness::*;
use crate::low::*;

/// Time for another thread or task to start to wait.
const A_WHILE: Duration = Duration::from_millis(50);

#[track_caller]
fn peer_did(error: &Error) {
    assert_eq!(error.cause, Cause::Disconnected, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(": the peer closed the connection ["),
        "{text}"
    );
    assert!(error.is_disconnected());
}

#[track_caller]
fn this_end_did(error: &Error) {
    assert_eq!(error.cause, Cause::Closed, "{error}");
    let text = error.to_string();
    let said = ": this end closed or dropped the connection [";
    assert!(text.contains(said), "{text}");
    assert!(error.is_disconnected());
}

#[test]
fn the_end_that_closes_hears_that_it_did_and_the_other_that_the_peer_did() {
    let (active, passive) = pair();
    let kept = active.post_receive(active.buffer(1).unwrap()).unwrap();
    active.disconnect().unwrap();
    active.wait_disconnected(PATIENCE).unwrap();
    passive.wait_disconnected(PATIENCE).unwrap();
    this_end_did(&active.receive().unwrap_err());
    this_end_did(&active.ended().unwrap());
    this_end_did(&kept.wait().unwrap_err().error);
    let sent = active.send(vec![1]).and_then(Transfer::wait);
    this_end_did(&sent.unwrap_err().error);
    peer_did(&passive.receive().unwrap_err());
    peer_did(&passive.ended().unwrap());
    // A close that comes later changes nothing.
    passive.disconnect().unwrap();
    peer_did(&passive.receive().unwrap_err());
}

#[test]
fn transfers_that_outlive_their_connection_hear_that_this_end_dropped_it() {
    let (active, passive) = pair();
    let kept = active.post_receive(active.buffer(1).unwrap()).unwrap();
    drop(active);
    this_end_did(&kept.wait().unwrap_err().error);
    peer_did(&passive.receive().unwrap_err());
}

#[test]
fn a_disconnect_by_the_connections_id_is_this_ends() {
    let (active, passive) = pair();
    active.id().disconnect().unwrap();
    active.wait_disconnected(PATIENCE).unwrap();
    this_end_did(&active.receive().unwrap_err());
    peer_did(&passive.receive().unwrap_err());
}

#[test]
fn destroying_the_connections_id_is_this_ends_and_ends_its_waits() {
    let (active, passive) = pair();
    let kept = active.post_receive(active.buffer(1).unwrap()).unwrap();
    let destroying = active.id().clone();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| active.receive_within(PATIENCE));
        thread::sleep(A_WHILE);
        destroying.destroy(PATIENCE).unwrap();
        this_end_did(&receiving.join().unwrap().unwrap_err());
    });
    let kept = kept.wait_within(PATIENCE).expect("the work ends");
    this_end_did(&kept.unwrap_err().error);
    this_end_did(&active.ended().unwrap());
    let sent = active.send(vec![1]).unwrap().wait_within(PATIENCE);
    this_end_did(&sent.expect("the work ends").unwrap_err().error);
    active.close(PATIENCE).unwrap();
    peer_did(&passive.receive_within(PATIENCE).unwrap_err());
}

/// Such a connection has no receives of its own, whose flush would wake its waits.
#[test]
fn destroying_the_id_ends_the_waits_and_returns_the_receives_of_a_connection_that_shares_them() {
    let queue = SharedReceiveQueue::new(4, 64);
    let (active, passive) = pair_with(&options(), &options().shared_receives(queue.clone()));
    let destroying = passive.id().clone();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| passive.receive_within(PATIENCE));
        thread::sleep(A_WHILE);
        destroying.destroy(PATIENCE).unwrap();
        this_end_did(&receiving.join().unwrap().unwrap_err());
    });
    drop(passive);
    assert_eq!(queue.posted(), 4);
    peer_did(&active.receive_within(PATIENCE).unwrap_err());
}

#[test]
fn messages_that_arrived_before_the_id_was_destroyed_occupy_no_shared_receive_for_ever() {
    let queue = SharedReceiveQueue::new(4, 64);
    let (active, passive) = pair_with(&options(), &options().shared_receives(queue.clone()));
    for number in 0..2 {
        active.send(vec![number]).unwrap().wait().unwrap();
    }
    passive.id().clone().destroy(PATIENCE).unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [0]);
    drop(passive);
    assert_eq!(queue.posted(), 4);
}

#[test]
fn events_of_ids_tell_who_ended_the_connection() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let _qp = Verbs::of(&id.device().unwrap()).give(&id);
    let child = passive.connect(&channel, &id);
    let ended = |channel: &EventChannel| next(channel, EventType::Disconnected).failure().unwrap();
    child.disconnect().unwrap();
    peer_did(&ended(&channel));
    id.disconnect().unwrap();
    this_end_did(&ended(&passive.channel));
}

#[test]
fn a_disconnect_that_fails_is_not_an_end() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.disconnect().unwrap_err();
    let _qp = Verbs::of(&id.device().unwrap()).give(&id);
    let child = passive.connect(&channel, &id);
    child.disconnect().unwrap();
    peer_did(&next(&channel, EventType::Disconnected).failure().unwrap());
}
