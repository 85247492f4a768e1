//! The library over the software device.
//!
//! Every test uses its own UDP port and group of processes, so that nothing else on the machine interferes.

#[cfg(feature = "tokio")]
mod abandoned;
mod addresses;
#[cfg(feature = "tokio")]
mod async_low;
mod at_once;
mod atomics;
mod bad_input;
#[cfg(feature = "tokio")]
mod cancellation;
mod connections;
mod datagrams;
mod deadlines;
mod death;
mod descriptor_counts;
#[cfg(feature = "tokio")]
mod descriptors;
mod events;
mod floods;
mod fork;
mod given_up;
mod harness;
mod idle;
mod keepalive;
mod long;
mod low;
mod low_layer;
mod memory;
mod misuse;
mod not_ready;
mod order;
mod process;
mod readiness;
mod regions;
mod resolving;
mod sample;
mod scopes;
mod shared_receives;
mod survey;
#[cfg(feature = "tokio")]
mod tasks;
mod unreliable;
mod usage;
mod who_ended;
mod windows;
