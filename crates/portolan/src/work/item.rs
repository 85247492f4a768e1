//! A send before it is posted.

use portolan_provider::verbs::{SendFlags, SendOp};

use super::pieces::Gather;

/// A send to be posted.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) op: SendOp,
    pub(crate) gather: Gather,
    /// At most the length of `gather`.
    pub(crate) length: usize,
    pub(crate) flags: SendFlags,
}
