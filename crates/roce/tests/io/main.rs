//! The software device over real sockets: two stacks on one UDP port, as two processes are. All on loopback; each test
//! has a port and a group name of its own. `io_memory` has them over ways through memory.
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
