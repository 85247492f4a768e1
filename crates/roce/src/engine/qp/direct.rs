//! One-sided requests that the host executes itself, in memory that it shares with the peer.

use core::time::Duration;

use portolan_provider::verbs::QpType;

use super::QueuePair;
use super::context::Context;
use crate::engine::{Direct, MemoryTable};

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

    /// The request of [`poll_direct`](Self::poll_direct) was carried out.
    #[inline]
    pub fn complete_direct(&mut self) {
        let (qpn, out) = (self.config.qpn, &mut self.outbox);
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.complete_direct(qpn, out);
        }
    }
}
