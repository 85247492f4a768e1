//! The receive queue: posted buffers, oldest first, until messages fill them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use portolan_provider::verbs::{
    QpInit, QpType, RecvWr, Sge, Srqn, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_provider::{Error, Result, Step};
use portolan_wire::Qpn;

use super::send_queue::{full, total_length};
use crate::engine::PdId;

/// A posted receive request.
#[derive(Debug)]
pub struct ReceiveEntry {
    wr_id: u64,
    pub(super) sges: Vec<Sge>,
    /// Its length in bytes.
    pub(super) capacity: u64,
}

impl ReceiveEntry {
    /// Stores a work request; its scatter/gather elements are copied to `sges`, an empty list.
    #[inline]
    pub(in crate::engine) fn new(wr: &RecvWr<'_>, mut sges: Vec<Sge>) -> Self {
        sges.extend_from_slice(wr.sges);
        Self {
            wr_id: wr.wr_id,
            sges,
            capacity: total_length(wr.sges),
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

/// The receive queue. Buffers of completed entries are reused.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    /// With a shared receive queue, at most the entry taken from it for the next message.
    entries: VecDeque<ReceiveEntry>,
    shared: Option<Arc<dyn ReceiveSource>>,
    depth: u32,
    max_sge: u32,
    spare_sges: Vec<Vec<Sge>>,
}

impl ReceiveQueue {
    pub(super) fn new(init: &QpInit) -> Self {
        Self {
            entries: VecDeque::new(),
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
    #[inline]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        if self.shared.is_some() {
            let (what, expected) = ("receive queue", "the shared one");
            let found = "the queue pair's own";
            return Err(Error::invalid(Step::PostReceive, what, expected, found));
        }
        if self.entries.len() >= self.depth as usize {
            return Err(full(Step::PostReceive, "receive work requests", self.depth));
        }
        check_pieces(wr, self.max_sge)?;
        let spare = self.spare_sges.pop().unwrap_or_default();
        self.entries.push_back(ReceiveEntry::new(wr, spare));
        Ok(())
    }

    /// The oldest request, which gets the arriving message. If taken from a shared receive queue, it stays with this
    /// queue pair.
    #[inline]
    pub(super) fn front(&mut self) -> Option<&ReceiveEntry> {
        if self.entries.is_empty()
            && let Some(source) = &self.shared
        {
            let spare = self.spare_sges.pop().unwrap_or_default();
            self.entries.extend(source.take(spare));
        }
        self.entries.front()
    }

    /// Removes the oldest request, if this queue pair has it; returns its `wr_id`.
    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<u64> {
        let mut entry = self.entries.pop_front()?;
        entry.sges.clear();
        self.spare_sges.push(entry.sges);
        Some(entry.wr_id)
    }
}

pub(in crate::engine) fn check_pieces(wr: &RecvWr<'_>, max_sge: u32) -> Result<()> {
    if wr.sges.len() <= max_sge as usize {
        return Ok(());
    }
    let (what, found) = ("scatter/gather elements", wr.sges.len());
    let expected = format_args!("at most {max_sge}");
    Err(Error::invalid(Step::PostReceive, what, expected, found))
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
