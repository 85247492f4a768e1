//! C's structures and numbers, as the headers of rdma-core have them: `infiniband/verbs.h`, `infiniband/sa.h`,
//! `infiniband/ib.h` and `rdma/rdma_cma.h`. Programs reach into them, so they are the ABI. Names are C's, without
//! their prefixes.
//!
//! [`exports`] gives functions the names by which programs find them.
//!
//! Each structure can describe itself ([`Structure`]), and tests hold that against the headers.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_snake_case,
    reason = "the headers say what the fields are; most are pointers of C's"
)]
#![allow(unsafe_code, reason = "structures of zeros are made")]

mod cma;
mod describe;
mod export;
mod kern;
mod sa;
mod verbs;

pub use cma::*;
pub use describe::{Field, Structure, nested, structures};
pub use kern::*;
pub use sa::*;
pub use verbs::*;

use describe::layouts;
