//! One-sided requests that the host executes itself, in memory that it shares with the peer.

use core::time::Duration;

use portolan_provider::verbs::{QpState, QpType, SendWr};

use super::QueuePair;
use super::context::Context;
use crate::engine::{Direct, MemoryTable, PlannedDirect};

impl QueuePair {
    /// The next request, if the host may execute it itself instead of sending packets: a one-sided request of an RC
    /// queue pair, with nothing unacknowledged before it. Afterwards [`complete_direct`](Self::complete_direct)
    /// completes it. If it is not executed, nothing has changed.
    #[inline]
    pub fn poll_direct(&mut self, memory: &MemoryTable) -> Option<Direct<'_>> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let requester = &self.service.reliable()?.requester;
        let head = requester.direct(&cx, &mut self.segments)?;
        Some(head.with_bytes(requester, 0, &self.segments))
    }

    /// Whether [`poll_direct`](Self::poll_direct) may have a request.
    #[inline]
    pub fn is_one_sided_next(&self) -> bool {
        let halves = self.service.reliable();
        halves.is_some_and(|halves| halves.requester.is_one_sided_next())
    }

    /// The key of the peer's memory if the oldest request is an atomic.
    #[inline]
    pub fn next_atomic_key(&self) -> Option<u32> {
        self.service.reliable()?.requester.next_atomic_key()
    }

    /// Whether the oldest request is the only one and signaled, so that the program probably waits for it, and the peer has
    /// answered an earlier packet, so that it knows that the connection is established.
    #[inline]
    pub fn is_next_awaited(&self) -> bool {
        let halves = self.service.reliable();
        halves.is_some_and(|halves| halves.requester.is_next_awaited())
    }

    /// The request that is posted now, if the host may execute it at once, without queueing it: a read or write with one
    /// element of an RC queue pair that has nothing to send and nothing unacknowledged. Afterwards
    /// [`post_direct`](Self::post_direct) completes it. If it is not executed, nothing has changed.
    #[inline]
    pub fn plan_direct(&self, memory: &MemoryTable, wr: &SendWr<'_>) -> Option<PlannedDirect> {
        if self.qp_type() != QpType::Rc || self.attr.state != QpState::Rts {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        self.service.reliable()?.requester.plan_direct(&cx, wr)
    }

    /// Completes a request that was carried out as planned. It has the same effect as
    /// [`complete_direct`](Self::complete_direct) for a queued one.
    #[inline]
    pub fn post_direct(&mut self, wr: &SendWr<'_>, planned: &PlannedDirect) {
        let (qpn, out) = (self.config.qpn, &mut self.outbox);
        if let Some(halves) = self.service.reliable() {
            halves.requester.post_direct(wr, planned, qpn, out);
        }
    }

    /// The request of [`poll_direct`](Self::poll_direct) was carried out.
    #[inline]
    pub fn complete_direct(&mut self) {
        let (qpn, out) = (self.config.qpn, &mut self.outbox);
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.complete_direct(qpn, out);
        }
    }
}
