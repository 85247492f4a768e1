//! A RoCEv2 device in user space.
//!
//! * [`engine`]: queue pairs, completion queues and memory protection as pure state machines.
//! * [`io`]: devices, UDP, threads and memory around them.
//!
//! The engine decides; the I/O beside it gathers, sends, receives, copies and keeps time.

extern crate alloc;

#[forbid(unsafe_code)]
pub mod engine;
pub mod io;
