//! Impossible operations are refused on the side that caused them, with a typed cause and a sentence.

mod addresses;
mod handshakes;
mod ids;
mod work;

use std::net::SocketAddr;

use portolan::provider::verbs::WcStatus;
use portolan::{Cause, Error, Failed, Step};

use crate::harness::*;

/// Checks an error's step and text.
#[track_caller]
pub(super) fn says(error: &Error, step: Step, parts: &[&str]) {
    assert_eq!(error.step, step, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Checks that work failed with this status and that its buffer came back.
#[track_caller]
pub(super) fn failed_so(failed: &Failed, status: WcStatus) {
    assert_eq!(failed.error.cause, Cause::WorkFailed(status), "{failed}");
    assert!(failed.buffer.is_some(), "the buffer comes back");
}

/// An address without a listener.
pub(super) fn deserted() -> SocketAddr {
    listener("127.0.0.1:0").local_addr().unwrap()
}
