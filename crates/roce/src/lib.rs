//! A RoCEv2 device in user space.
//!
//! * [`engine`]: queue pairs, completion queues and memory protection as pure state machines.
//! * [`io`]: devices, UDP, threads and memory around them; with the feature `io`, which is on by default.
//!
//! The engine decides; the I/O beside it gathers, sends, receives, copies and keeps time.

extern crate alloc;

#[forbid(unsafe_code)]
pub mod engine;
#[cfg(feature = "io")]
pub mod io;
