//! C structures and numbers of rdma-core's headers: `infiniband/verbs.h`, `infiniband/sa.h`, `infiniband/ib.h` and
//! `rdma/rdma_cma.h`. Programs access their fields, so they are part of the ABI. Names are those of C without prefixes.
//!
//! [`exports`] exports functions under the names that programs use, and [`guard`] is the boundary that a call crosses.
//! [`Library`] loads libibverbs.
//!
//! Each structure can describe itself ([`Structure`]), and tests compare that with the headers.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_snake_case,
    reason = "the headers document the fields; most are C pointers"
)]

mod all;
mod cma;
mod describe;
mod export;
pub mod guard;
mod kern;
mod library;
mod memory;
pub mod pieces;
pub mod pointers;
mod sa;
mod verbs;

pub use all::{nested, structures};
pub use cma::*;
pub use describe::{Field, Structure};
pub use kern::*;
pub use library::{Library, LoadError, Verbs};
pub use memory::{free, malloc_copy, malloc_list};
pub use sa::*;
pub use verbs::*;

use describe::layouts;
