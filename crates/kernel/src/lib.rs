//! The kernel's RDMA devices as a provider: RDMA hardware, and Linux's software devices (`rdma_rxe`, `siw`).
//!
//! Connection management uses the rdma_cm device (`/dev/infiniband/rdma_cm`), whose commands are those of the
//! provider's interface. The verbs use the machine's libibverbs with its device drivers. It is loaded at run time and
//! not needed to build.

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
