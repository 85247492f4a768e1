//! Streams over the software device.

mod basics;
mod compared;
mod death;
#[allow(dead_code, reason = "shared with the tests of connections")]
#[path = "../library/harness.rs"]
mod harness;
mod pair;
mod readiness;
#[cfg(feature = "tokio")]
mod tasks;
