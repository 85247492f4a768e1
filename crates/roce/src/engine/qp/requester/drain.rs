//! Draining: started requests are completed, and no others are started (IBTA 10.3.1.5, SQD).

use alloc::vec::Vec;

use portolan_provider::verbs::QpState;

use super::{Built, Requester, SendEntry};
use crate::engine::Segment;
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;

impl Requester {
    /// Whether the next entry must wait until the queue pair returns to RTS, or has changed its way.
    pub(super) fn is_held_back(&self, state: QpState, entry: &SendEntry) -> bool {
        // Without a timer, only a later packet would show that one is lost.
        let changes_way = self.changes_way && self.retransmit.is_used();
        let drains = state == QpState::Sqd || changes_way;
        drains && self.next >= self.frontier && entry.first >= self.next
    }

    /// If the sender stops although its last packet did not request an acknowledgement, sends that packet again with
    /// the request. Otherwise no answer would arrive, unless a timer runs, and then late.
    pub(super) fn ask_for_acknowledgement(
        &mut self,
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Option<Built> {
        if self.next == self.una || self.since_ack_request == 0 {
            return None;
        }
        let (next, entry) = (self.next, self.entry);
        let last = next - 1;
        let is_of_last =
            |entry: &SendEntry| (entry.first..entry.end).contains(&last) && !entry.awaits_data();
        let of_last = (0..=entry)
            .rev()
            .find(|at| self.queue.get(*at).is_some_and(is_of_last))?;
        let gather = core::mem::take(&mut self.gather);
        (self.next, self.entry) = (last, of_last);
        let built = self.repeat(cx, segments, out);
        (self.next, self.entry, self.gather) = (next, entry, gather);
        built
    }

    /// Repeats a packet with a request for an acknowledgement.
    fn repeat(
        &mut self,
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Option<Built> {
        let mut part = self.message_part(cx, self.queue.get(self.entry)?)?;
        part.headers.bth.ack_request = true;
        let source = self.locate(cx, &part, segments).ok()?;
        self.advance(cx, part.packets, true, out);
        Some(Built {
            headers: part.headers,
            source,
        })
    }

    /// Whether all started requests are complete.
    pub(in crate::engine::qp) fn is_drained(&self) -> bool {
        let is_begun = |entry: &SendEntry| entry.first < self.frontier;
        !self.held && self.una >= self.frontier && !self.queue.front().is_some_and(is_begun)
    }
}
