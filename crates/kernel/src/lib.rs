//! The kernel's RDMA devices as a provider: the way to RDMA hardware, and to Linux's own soft devices
//! (`rdma_rxe`, `siw`).
//!
//! Connection management is the rdma_cm device's (`/dev/infiniband/rdma_cm`), whose commands are those
//! of the seam. The verbs are the machine's libibverbs, which has the devices' drivers; it is loaded at
//! run time, and nothing of it is needed to build.

mod error;
mod listing;
mod provider;
pub mod raw;
mod sys;
mod ucma;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use provider::{KernelProvider, check_verbs_library, has_devices, kernel_offers};
pub use ucma::Offers;

/// Locks; a panic in another thread does not spread, for every critical section leaves its state
/// whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
