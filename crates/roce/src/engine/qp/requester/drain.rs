//! Draining: what was begun is brought to its end, nothing else is begun (IBTA 10.3.1.5, SQD).

use portolan_provider::verbs::QpState;

use super::{Requester, SendEntry};
use crate::engine::qp::context::Context;

impl Requester {
    /// Whether the entry whose turn it is has to wait until the queue pair is back in RTS.
    pub(super) fn is_held_back(&self, cx: &Context<'_>, entry: &SendEntry) -> bool {
        cx.attr.state == QpState::Sqd && self.next >= self.frontier && entry.first >= self.next
    }

    /// Whether all that was begun is complete.
    pub(in crate::engine::qp) fn is_drained(&self) -> bool {
        let is_begun = |entry: &SendEntry| entry.first < self.frontier;
        self.una >= self.frontier && !self.queue.front().is_some_and(is_begun)
    }
}
