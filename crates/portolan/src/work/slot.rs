//! A piece of posted work in the table.

use std::sync::Arc;

use portolan_provider::Step;
use portolan_provider::traits::Mw;
use portolan_provider::verbs::WorkCompletion;

use super::pieces::Gather;
use crate::sys::KeptRegistered;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) pieces: Gather,
    pub(super) kind: Kind,
    pub(super) done: Option<WorkCompletion>,
    pub(super) owner: Owner,
    /// Number of the operation's work requests. Only the last one is signaled.
    pub(super) requests: u32,
    /// Length of an operation that this side started, bytes.
    pub(super) length: usize,
    /// The first request that failed.
    pub(super) failed: Option<WorkCompletion>,
    /// The memory window that the request binds, and the memory.
    pub(super) window: Option<(Arc<dyn Mw>, KeptRegistered)>,
}

/// A bit in a work request's number: more requests of the same operation follow. Such a request is unsignaled, so it
/// completes only if it fails.
pub(super) const MORE: u64 = 1 << 62;

impl Slot {
    pub(super) fn new(pieces: Gather, kind: Kind, requests: u32, length: usize) -> Self {
        Self {
            pieces,
            kind,
            done: None,
            owner: Owner::Handle,
            requests,
            length,
            failed: None,
            window: None,
        }
    }
}

/// Who takes the outcome of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A transfer or, for the ring, the next receive.
    Handle,
    /// A later request for abandoned work.
    Abandoned,
    /// Nobody: the completion frees the buffer.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    /// A receive that the connection keeps posted.
    Ring,
    /// A receive posted by the caller.
    Receive,
}

impl Kind {
    pub(super) fn step(self) -> Step {
        match self {
            Self::Send => Step::PostSend,
            Self::Receive | Self::Ring => Step::PostReceive,
        }
    }
}

/// Work that a later request may take over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abandoned {
    pub(crate) key: usize,
    /// The program's tag.
    pub(crate) tag: Option<u64>,
}
