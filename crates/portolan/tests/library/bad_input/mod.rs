//! What cannot work is refused: by a typed cause, in a sentence, on the side that caused it.

mod addresses;
mod handshakes;
mod ids;
mod work;

use std::net::SocketAddr;

use portolan::provider::verbs::WcStatus;
use portolan::{Cause, Error, Failed, Step};

use crate::harness::*;

/// That an error is of a step and says something.
#[track_caller]
pub(super) fn says(error: &Error, step: Step, parts: &[&str]) {
    assert_eq!(error.step, step, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// That work failed so, and that its buffer came back.
#[track_caller]
pub(super) fn failed_so(failed: &Failed, status: WcStatus) {
    assert_eq!(failed.error.cause, Cause::WorkFailed(status), "{failed}");
    assert!(failed.buffer.is_some(), "the buffer comes back");
}

/// An address that nothing listens on.
pub(super) fn deserted() -> SocketAddr {
    listener("127.0.0.1:0").local_addr().unwrap()
}
