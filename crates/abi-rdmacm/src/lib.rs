//! `librdmacm.so.1`: C programs written for librdmacm run on Portolan unmodified.
//!
//! The library keeps what a C program sees (ids, events, their memory) and hands commands to the kernel's rdma_cm
//! device and verbs to the libibverbs that the process has.
//!
//! * `layout`: the structures that programs reach into.
//! * `export`: the functions, by the names and versions of `librdmacm.map`.
//! * `guard`: errors and panics at the edge; `fork`: what a child is refused.
//! * `id`, `channel`, `device`: what there is; `kernel`, `convert`: what the kernel says of it.
//! * `endpoint`, `resolve`, `connect`, `qp`, `multicast`, `event`, `names`, `lookup`, `reach`: the calls.

#![allow(
    unsafe_code,
    reason = "C programs hand over pointers, and have them handed"
)]

mod address;
mod channel;
mod connect;
mod convert;
mod device;
mod endpoint;
mod event;
mod export;
mod fork;
mod guard;
mod id;
mod kernel;
mod lookup;
mod multicast;
mod names;
mod qp;
mod reach;
mod resolve;
mod verbs;

use portolan_abi_layout as layout;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic in another thread does not spread, for every critical section leaves its state
/// whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
