//! The receive queue: posted buffers, oldest first, until messages fill them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use portolan_provider::verbs::{
    QpInit, QpType, RecvWr, Sge, Srqn, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_provider::{Error, Result, Step};
use portolan_wire::Qpn;

use super::places::Places;
use super::send_queue::{full, total_length};
use crate::engine::PdId;

/// A posted receive request.
#[derive(Debug, Default)]
pub struct ReceiveEntry {
    wr_id: u64,
    pub(super) sges: Vec<Sge>,
    /// Its length in bytes.
    pub(super) capacity: u64,
}

impl ReceiveEntry {
    /// Stores a work request; its scatter/gather elements are copied to `sges`, an empty list.
    #[inline]
    pub(in crate::engine) fn new(wr: &RecvWr<'_>, sges: Vec<Sge>) -> Self {
        let mut entry = Self {
            sges,
            ..Self::default()
        };
        entry.replace(wr);
        entry
    }

    /// Stores another request in its place.
    #[inline]
    fn replace(&mut self, wr: &RecvWr<'_>) {
        self.wr_id = wr.wr_id;
        self.capacity = total_length(wr.sges);
        self.sges.clear();
        match wr.sges {
            // Mostly. The general copy is a call.
            [sge] => self.sges.push(*sge),
            sges => self.sges.extend_from_slice(sges),
        }
    }
}

/// A shared receive queue as its queue pairs see it.
///
/// Queue pairs have separate locks, so the host decides how they share the queue: it puts a
/// [`SharedReceiveQueue`](crate::engine::SharedReceiveQueue) behind a lock, and raises the event that a take may cause.
pub trait ReceiveSource: Send + Sync + fmt::Debug {
    /// Protection domain of the receives' memory.
    fn pd(&self) -> PdId;

    /// Takes the oldest receive; `None` if the queue is empty. `spare` is an empty list, kept in exchange for the
    /// receive's.
    fn take(&self, spare: Vec<Sge>) -> Option<ReceiveEntry>;
}

/// An XRC domain as its receiving queue pairs see it (IBTA annex A14): shared receive queues by number.
pub trait ReceiveDomain: Send + Sync + fmt::Debug {
    /// The queue with this number; `None` if it is not in the domain.
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn ReceiveSource>>;
}

/// The receive queue.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    /// With a shared receive queue, at most the entry taken from it for the next message.
    entries: Places<ReceiveEntry>,
    shared: Option<Arc<dyn ReceiveSource>>,
    depth: u32,
    max_sge: u32,
    /// An empty list for the shared receive queue, in exchange for that of the next entry.
    spare_sges: Vec<Sge>,
}

impl ReceiveQueue {
    pub(super) fn new(init: &QpInit) -> Self {
        Self {
            entries: Places::default(),
            shared: None,
            depth: match init.qp_type {
                QpType::XrcSend => 0,
                _ => init.cap.max_recv_wr,
            },
            max_sge: init.cap.max_recv_sge,
            spare_sges: Vec::new(),
        }
    }

    /// Switches to a shared receive queue.
    pub(super) fn share(&mut self, source: Arc<dyn ReceiveSource>) {
        self.shared = Some(source);
    }

    /// Protection domain of the receives' memory, if it differs from the queue pair's.
    pub(super) fn pd(&self) -> Option<PdId> {
        self.shared.as_ref().map(|source| source.pd())
    }

    /// Appends a request.
    ///
    /// # Errors
    /// `LimitReached` for a full queue; `InvalidArgument` for too many scatter/gather elements, or if a shared receive
    /// queue is used instead.
    #[inline(always)]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        let is_accepted = self.shared.is_none()
            && self.entries.len() < self.depth as usize
            && wr.sges.len() <= self.max_sge as usize;
        if !is_accepted {
            return Err(self.refusal(wr));
        }
        if let Some(entry) = self.entries.push() {
            entry.replace(wr);
        }
        Ok(())
    }

    /// Why a request is not accepted.
    #[cold]
    fn refusal(&self, wr: &RecvWr<'_>) -> Error {
        if self.shared.is_some() {
            let (what, expected) = ("receive queue", "the shared one");
            let found = "the queue pair's own";
            return Error::invalid(Step::PostReceive, what, expected, found);
        }
        match self.entries.len() >= self.depth as usize {
            true => full(Step::PostReceive, "receive work requests", self.depth),
            false => too_many_pieces(wr, self.max_sge),
        }
    }

    /// The oldest request, which gets the arriving message. If taken from a shared receive queue, it stays with this
    /// queue pair.
    #[inline]
    pub(super) fn front(&mut self) -> Option<&ReceiveEntry> {
        if self.entries.is_empty() && self.shared.is_some() {
            self.take_shared();
        }
        self.entries.front()
    }

    fn take_shared(&mut self) {
        let spare = core::mem::take(&mut self.spare_sges);
        let taken = self.shared.as_ref().and_then(|source| source.take(spare));
        if let Some(entry) = taken
            && let Some(place) = self.entries.push()
        {
            self.spare_sges = core::mem::replace(place, entry).sges;
            self.spare_sges.clear();
        }
    }

    /// Removes the oldest request, if this queue pair has it; returns its `wr_id`.
    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<u64> {
        let wr_id = self.entries.front()?.wr_id;
        self.entries.pop_front();
        Some(wr_id)
    }
}

pub(in crate::engine) fn check_pieces(wr: &RecvWr<'_>, max_sge: u32) -> Result<()> {
    match wr.sges.len() <= max_sge as usize {
        true => Ok(()),
        false => Err(too_many_pieces(wr, max_sge)),
    }
}

fn too_many_pieces(wr: &RecvWr<'_>, max_sge: u32) -> Error {
    let (what, found) = ("scatter/gather elements", wr.sges.len());
    let expected = format_args!("at most {max_sge}");
    Error::invalid(Step::PostReceive, what, expected, found)
}

/// The completion of a receive, without the data of a successful one.
pub(super) fn receive_completion(wr_id: u64, status: WcStatus, qpn: Qpn) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        qp_num: qpn,
        ..WorkCompletion::EMPTY
    }
}
