//! Connection requests and their answers.

use std::sync::Arc;
use std::thread;

use portolan::wire::cm::RejectReason;
use portolan::{Cause, Options, Step};

use super::says;
use crate::harness::*;

#[test]
fn a_destination_without_listener_rejects_with_reason_8_and_both_addresses() {
    for wanted in ["127.0.0.1:0", "[::1]:0"] {
        let address = listener(wanted).local_addr().unwrap();
        let error = connector().connect_to(address).unwrap_err();
        let Cause::Rejected { reason, .. } = &error.cause else {
            panic!("{error:?}");
        };
        assert_eq!(*reason, RejectReason::INVALID_SERVICE_ID);
        assert_eq!(reason.0, 8);
        let local = error.context.local.expect("the local address is known");
        assert_eq!(error.context.remote, Some(address.into()));
        assert_eq!(error.errno(), 111, "ECONNREFUSED");
        let parts = [
            "rejected by the peer, reason",
            &local.to_string(),
            &address.to_string(),
        ];
        says(&error, Step::Connect, &parts);
    }
}

#[test]
fn a_rejection_carries_the_peers_reason_and_private_data() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connecting = thread::spawn(move || connector().connect_to(address));
    listener
        .accept_within(PATIENCE)
        .unwrap()
        .reject(b"full")
        .unwrap();
    let error = connecting.join().unwrap().unwrap_err();
    let mut padded = b"full".to_vec();
    padded.resize(148, 0);
    let expected = Cause::Rejected {
        reason: RejectReason::CONSUMER_DEFINED,
        private_data: padded.into(),
    };
    assert_eq!(error.cause, expected);
    says(&error, Step::Connect, &["reason 28", &address.to_string()]);
}

#[test]
fn private_data_longer_than_its_message_holds_is_refused_before_anything_is_sent() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let error = connector()
        .private_data(vec![1; 57])
        .connect_to(address)
        .unwrap_err();
    says(
        &error,
        Step::Connect,
        &["private data: expected at most 56 bytes, found 57 bytes"],
    );
    assert!(listener.try_accept().unwrap().is_none());

    let connecting =
        thread::spawn(move || connector().private_data(vec![1; 56]).connect_to(address));
    let incoming = listener.accept_within(PATIENCE).unwrap();
    let long = options().private_data(vec![1; 197]);
    let error = incoming.accept_with(&long).unwrap_err();
    says(
        &error,
        Step::Accept,
        &["private data: expected at most 196 bytes, found 197 bytes"],
    );
    let error = connecting.join().unwrap().unwrap_err();
    assert!(
        matches!(error.cause, Cause::Rejected { .. }),
        "the peer gets the reason: {error}"
    );

    let connecting = thread::spawn(move || connector().connect_to(address));
    let error = listener
        .accept_within(PATIENCE)
        .unwrap()
        .reject(&[1; 149])
        .unwrap_err();
    says(
        &error,
        Step::Reject,
        &["private data: expected at most 148 bytes, found 149 bytes"],
    );
    let error = connecting.join().unwrap().unwrap_err();
    assert!(
        matches!(error.cause, Cause::Rejected { .. }),
        "the peer gets the reason: {error}"
    );
}

#[test]
fn zero_and_absurd_depths_are_refused_on_the_side_that_asks_for_them() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let with = |change: fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        options
    };
    let cases = [
        (with(|options| options.send_depth = 0), "send_depth"),
        (with(|options| options.send_depth = u32::MAX), "send_depth"),
        (with(|options| options.send_depth = 20_000), "send_depth"),
        (with(|options| options.receive_depth = u32::MAX), "receives"),
        (
            with(|options| (options.receive_depth, options.posted_receives) = (0, 0)),
            "receives",
        ),
        (with(|options| options.receive_size = 0), "receive_size"),
        (
            with(|options| options.receive_size = usize::MAX),
            "receive_size",
        ),
        (
            with(|options| {
                (options.send_depth, options.receive_depth) = (1 << 14, 1 << 14);
            }),
            "receive_depth and posted_receives together",
        ),
    ];
    for (options, named) in cases {
        let error = connector()
            .options(options.clone())
            .connect_to(address)
            .unwrap_err();
        assert!(
            matches!(
                error.cause,
                Cause::InvalidArgument { .. } | Cause::LimitReached { .. }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains(named), "{named}: {error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");

        let connecting = thread::spawn(move || connector().connect_to(address));
        let incoming = listener.accept_within(PATIENCE).unwrap();
        let error = incoming.accept_with(&options).unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
        let error = connecting.join().unwrap().unwrap_err();
        assert!(
            matches!(error.cause, Cause::Rejected { .. }),
            "the peer gets the reason: {error}"
        );
    }
}

#[test]
fn requests_that_wait_at_a_listener_are_rejected_when_it_is_closed() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connecting: Vec<_> = (0..4)
        .map(|_| thread::spawn(move || connector().connect_to(address)))
        .collect();
    // One has been taken and not answered; the others wait.
    let taken = listener.accept_within(PATIENCE).unwrap();
    drop(listener);
    drop(taken);
    for thread in connecting {
        let error = thread.join().unwrap().unwrap_err();
        assert!(matches!(error.cause, Cause::Rejected { .. }), "{error}");
    }
}

#[test]
fn objects_that_hold_each_other_have_a_short_debug_output() {
    let (active, passive) = pair();
    let listener = listener("127.0.0.1:0");
    let transfer = active.post_receive(active.buffer(1).unwrap()).unwrap();
    passive
        .send(passive.buffer(1).unwrap())
        .unwrap()
        .wait()
        .unwrap();
    let message = active.receive_within(PATIENCE).unwrap();
    let printed = [
        format!("{active:?}"),
        format!("{transfer:?}"),
        format!("{message:?}"),
        format!("{listener:?}"),
        format!("{:?}", active.id()),
        format!("{:?}", Arc::clone(&provider())),
        format!("{:?}", provider().devices().unwrap()),
    ];
    for text in printed {
        assert!(text.len() < 4096, "{} bytes: {text}", text.len());
    }
}
