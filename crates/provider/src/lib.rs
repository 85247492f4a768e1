//! The interface of an RDMA provider: the command set of Linux's rdma_cm device and the verbs, as
//! types and traits.
//!
//! The kernel provider passes commands to `/dev/infiniband/rdma_cm` and the installed libibverbs.
//! The software provider executes them inside the process. Code above these traits works with
//! either.
//!
//! * [`cm`]: parameters and events of the connection manager's commands.
//! * [`verbs`]: devices, queue pairs, work requests and completions.
//! * [`address`]: socket addresses as the rdma_cm uses them.
//! * [`error`]: one error type for all providers; `errno` is derived from it in one place.
//! * [`number_map`]: a hash for maps keyed by id numbers, and with feature `std` such maps.
//! * [`enum_table`]: defines an enum together with the list of its variants and their names.
//! * [`mutants`]: defines the defects that a simulator plants in an engine.
//! * `traits` (feature `std`): the traits that a provider implements.
//!
//! Without the feature `std` the crate is `no_std` with `alloc`; the protocol engines use it that
//! way.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod address;
pub mod cm;
pub mod error;
pub mod holder;
pub mod number_map;
#[doc(hidden)]
pub mod sealed;
mod table;
#[cfg(feature = "std")]
pub mod traits;
pub mod verbs;
#[cfg(feature = "std")]
mod waiting;

pub use address::{Address, SockaddrIb};
pub use error::{Cause, Error, Result, Step};
pub use holder::Holder;
