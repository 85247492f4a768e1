//! Streams over the software device.

mod basics;
mod between;
mod compared;
#[cfg(feature = "tokio")]
mod compared_tasks;
mod datagrams;
mod death;
#[allow(dead_code, reason = "shared with the tests of connections")]
#[path = "../library/harness.rs"]
mod harness;
mod many;
mod own_waits;
mod pair;
mod readiness;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(feature = "tokio")]
mod wakes;
