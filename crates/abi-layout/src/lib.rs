//! C's structures and numbers, as the headers of rdma-core have them: `infiniband/verbs.h`, `infiniband/sa.h`,
//! `infiniband/ib.h` and `rdma/rdma_cma.h`. Programs reach into them, so they are the ABI. Names are C's, without
//! their prefixes.
//!
//! [`exports`] gives functions the names by which programs find them, and [`guard`] is the edge that a call crosses.
//! [`Library`] loads libibverbs.
//!
//! Each structure can describe itself ([`Structure`]), and tests hold that against the headers.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_snake_case,
    reason = "the headers say what the fields are; most are pointers of C's"
)]

mod all;
mod cma;
mod describe;
mod export;
pub mod guard;
mod kern;
mod library;
mod memory;
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
