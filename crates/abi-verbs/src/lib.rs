//! `libibverbs.so.1`: any RDMA program runs on Portolan's software devices, unmodified.
//!
//! The library keeps what a C program sees (devices, contexts, queues, their memory) and hands verbs to the software
//! provider of [`portolan`]. Devices are as Linux's rdma_rxe would report them.
//!
//! * [`layout`]: the structures that programs reach into.
//! * `export`: the functions, by the names and versions of `libibverbs.map`; `tables`: those that programs call by
//!   an open device.
//! * `guard`: errors and panics at the edge; `object`, `acks`: what is handed out by pointer, and its end.
//! * `provider`: the software provider, one for the process.
//! * `device`, `context`, `query`, `pd` and so on: the verbs.

#![allow(dead_code, reason = "what queues need stands before them")]
#![allow(
    unsafe_code,
    reason = "C programs hand over pointers, and have them handed"
)]

mod acks;
mod context;
mod convert;
mod device;
mod export;
mod guard;
pub mod layout;
mod object;
mod pd;
mod provider;
mod query;
mod strings;
mod sysfs;
mod tables;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic in another thread does not spread, for every critical section leaves its state
/// whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
