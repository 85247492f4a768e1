//! The kernel's RDMA devices as a provider: the way to RDMA hardware, and to Linux's own soft devices
//! (`rdma_rxe`, `siw`).
//!
//! Connection management is the rdma_cm device's (`/dev/infiniband/rdma_cm`), whose commands are those
//! of the provider's interface. The verbs are the machine's libibverbs, which has the devices' drivers; it is loaded at
//! run time, and nothing of it is needed to build.

mod error;
mod interfaces;
mod listing;
mod provider;
pub mod raw;
#[forbid(unsafe_code)]
mod rdma_cm;
mod sys;

pub use provider::{KernelProvider, check_verbs_library, has_devices, kernel_offers};
pub use rdma_cm::{IbServiceKey, Offers, ib_services};
