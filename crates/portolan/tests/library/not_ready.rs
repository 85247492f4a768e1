//! A peer without a posted receive: the sender learns why its message waits, and nothing is lost.

use std::time::Duration;

use portolan::provider::Cause;
use portolan::provider::verbs::WcStatus;
use portolan::{Connection, Error, Message, Options, SharedReceiveQueue};

use crate::harness::*;

/// The sender's deadline.
const DEADLINE: Duration = Duration::from_millis(200);

/// A pair whose passive end holds sixteen messages, all that it may: active, passive, the messages.
fn full(passive: Options) -> (Connection, Connection, Vec<Message>) {
    let (active, passive) = pair_with(&options(), &passive);
    let mut held = Vec::new();
    for number in 0..16 {
        active.send(vec![number]).unwrap().wait().unwrap();
        held.push(passive.receive_within(PATIENCE).unwrap());
    }
    (active, passive, held)
}

fn sixteen() -> Options {
    options().receive_depth(16).held_messages(16)
}

#[track_caller]
fn assert_names_reason(delay: Option<Error>) {
    let delay = delay.expect("the peer has no receive");
    let Cause::PeerNotReady { for_ms } = delay.cause else {
        panic!("{delay}");
    };
    let expected = format!(
        "transfer: the peer has had no receive posted for {for_ms} ms: the message waits for one [local 127.0.0.1:"
    );
    assert!(delay.to_string().starts_with(&expected), "{delay}");
    assert!(!delay.is_disconnected(), "the connection goes on");
    assert_eq!(delay.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_sender_hears_within_its_deadline_that_the_peer_holds_all_messages_and_loses_nothing() {
    let (active, passive, held) = full(sixteen());
    let sending = active.send(vec![16]).unwrap();
    let write = active.send(vec![17]).unwrap();
    let sending = sending.wait_within(DEADLINE).unwrap_err();
    assert_names_reason(sending.delay());
    assert_names_reason(write.delay());
    assert_names_reason(active.send_delay());
    assert!(active.ended().is_none());

    for (number, message) in held.iter().enumerate() {
        assert_eq!(message[..], [number as u8]);
    }
    drop(held);
    sending.wait().unwrap();
    write.wait().unwrap();
    assert!(active.send_delay().is_none());
    for number in 16..18 {
        assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [number]);
    }
    assert!(
        passive.try_receive().unwrap().is_none(),
        "none arrives twice"
    );
}

#[test]
fn work_that_waits_for_something_else_has_no_delay() {
    let (active, passive) = pair_with(&options(), &sixteen());
    let receiving = active.post_receive(vec![0; 8]).unwrap();
    let receiving = receiving.wait_within(Duration::from_millis(5)).unwrap_err();
    assert!(receiving.delay().is_none());
    let sending = active.send(vec![1]).unwrap();
    passive.receive_within(PATIENCE).unwrap();
    eventually("the acknowledgement", || {
        assert!(sending.delay().is_none(), "the peer has a receive");
        active.try_receive().unwrap();
        active.send_delay().is_none()
    });
    sending.wait().unwrap();
}

#[test]
fn a_receiver_may_limit_how_often_its_peer_tries_and_the_error_names_the_reason() {
    let limited = sixteen().rnr_retry_count(2);
    let (active, _passive, held) = full(limited);
    let failed = active.send(vec![16]).unwrap().wait().unwrap_err();
    let cause = Cause::WorkFailed(WcStatus::RnrRetryExcErr);
    assert_eq!(failed.error.cause, cause);
    let text = failed.error.to_string();
    assert!(
        text.contains("receiver not ready: the peer posted no receive"),
        "{text}"
    );
    assert_eq!(failed.buffer.unwrap()[..], [16]);
    drop(held);
}

#[test]
fn a_sender_hears_that_a_shared_receive_queue_is_empty() {
    let queue = SharedReceiveQueue::new(16, 64);
    let (active, passive, held) = full(options().shared_receives(queue));
    let sending = active.send(vec![16]).unwrap();
    let sending = sending.wait_within(DEADLINE).unwrap_err();
    assert_names_reason(sending.delay());
    drop(held);
    sending.wait().unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [16]);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_hears_within_its_deadline_that_the_peer_holds_all_messages() {
    let (active, passive, held) = full(sixteen());
    let active = portolan::tasks::AsyncConnection::new(active).unwrap();
    let mut sending = active.send(vec![16]).unwrap();
    let late = tokio::time::timeout(DEADLINE, &mut sending).await;
    assert!(late.is_err());
    assert_names_reason(sending.delay());
    drop(held);
    sending.await.unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [16]);
}
