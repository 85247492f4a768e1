//! The software device over real sockets: two stacks on one UDP port, like two processes. Everything is on
//! loopback; each test has its own port and group name. `io_memory` runs the same tests over shared memory
//! links.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, reason = "a test")]

mod against_the_clock;
mod atomic;
mod datagram;
mod draining;
mod failure;
mod gsi;
mod harness;
mod hostile;
mod lifetime;
mod looking_on;
mod multicast;
mod panics;
mod process;
mod reregister;
mod shared_receives;
mod start;
mod tap;
mod through_memory;
mod time_stamps;
mod transfer;
mod ud_end;
mod windows;
mod xrc;
