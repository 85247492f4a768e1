//! The tests of `io` over shared memory links.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, reason = "a test")]

#[path = "io/against_the_clock.rs"]
mod against_the_clock;
#[path = "io/atomic.rs"]
mod atomic;
#[path = "io/channel_sleep.rs"]
mod channel_sleep;
#[path = "io/datagram.rs"]
mod datagram;
#[path = "io/datagrams_in_memory.rs"]
mod datagrams_in_memory;
#[path = "io/descriptors.rs"]
mod descriptors;
#[path = "io/device_wait.rs"]
mod device_wait;
#[path = "io/draining.rs"]
mod draining;
#[path = "io/failure.rs"]
mod failure;
#[path = "io/gsi.rs"]
mod gsi;
#[path = "io/harness.rs"]
mod harness;
#[path = "io/hostile.rs"]
mod hostile;
#[path = "io/lifetime.rs"]
mod lifetime;
#[path = "io/long_copies.rs"]
mod long_copies;
#[path = "io/looking_on.rs"]
mod looking_on;
#[path = "io/multicast.rs"]
mod multicast;
#[path = "io/one_sided.rs"]
mod one_sided;
#[path = "io/panics.rs"]
mod panics;
#[path = "io/placed.rs"]
mod placed;
#[path = "io/process.rs"]
mod process;
#[path = "io/program_memory.rs"]
mod program_memory;
#[path = "io/program_writes.rs"]
mod program_writes;
#[path = "io/refused.rs"]
mod refused;
#[path = "io/reregister.rs"]
mod reregister;
#[path = "io/shared_receives.rs"]
mod shared_receives;
#[path = "io/start.rs"]
mod start;
#[path = "io/tap.rs"]
mod tap;
#[path = "io/through_memory.rs"]
mod through_memory;
#[path = "io/time_stamps.rs"]
mod time_stamps;
#[path = "io/transfer.rs"]
mod transfer;
#[path = "io/ud_end.rs"]
mod ud_end;
#[path = "io/windows.rs"]
mod windows;
#[path = "io/xrc.rs"]
mod xrc;
