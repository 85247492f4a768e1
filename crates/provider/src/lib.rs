//! The seam of Portolan: the command set of Linux's rdma_cm device and the verbs, as types and
//! traits.
//!
//! A *provider* answers the commands. The kernel provider passes them on to
//! `/dev/infiniband/rdma_cm` and the installed libibverbs; the software provider answers them
//! inside the process. Above the seam nothing asks which provider it is on.
//!
//! * [`cm`]: connection-manager commands' parameters, events and their data.
//! * [`verbs`]: devices, queue pairs, work requests and completions.
//! * [`address`]: socket addresses as the rdma_cm uses them.
//! * [`error`]: one error type that explains itself; `errno` is derived from it in one place.
//! * `number_map` (feature `std`): maps by the numbers of ids.
//! * `traits` (feature `std`): what a provider implements.
//!
//! Without the feature `std` the crate is `no_std` with `alloc`: engines use it that way.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod address;
pub mod cm;
pub mod error;
#[cfg(feature = "std")]
pub mod number_map;
#[cfg(feature = "std")]
pub mod traits;
pub mod verbs;

pub use address::{Address, SockaddrIb};
pub use error::{Cause, Error, Result, Step};
