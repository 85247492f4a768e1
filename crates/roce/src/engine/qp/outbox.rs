//! What waits for the host to take it.

use alloc::collections::VecDeque;

use portolan_provider::verbs::{AsyncEvent, WorkCompletion};

use crate::engine::{Completion, Placement, QpCounters, Queue};

/// Placements, completions and events not yet taken, and the counters. Bounded by what causes
/// them: a packet's placements by the pieces of one work request, completions by the depths of the
/// queues, events by one of each kind.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) placements: VecDeque<Placement>,
    /// Those whose bytes are the network header's (UD).
    pub(super) grh_placements: VecDeque<Placement>,
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) counters: QpCounters,
    /// Which receives complete: with XRC, those of the queue that the latest message is for.
    pub(super) receives: Queue,
}

impl Outbox {
    pub(super) fn complete_send(&mut self, wc: WorkCompletion) {
        self.completions.push_back(Completion {
            queue: Queue::Send,
            wc,
            solicited: false,
        });
    }

    pub(super) fn complete_receive(&mut self, wc: WorkCompletion, solicited: bool) {
        self.completions.push_back(Completion {
            queue: self.receives,
            wc,
            solicited,
        });
    }

    /// Tells the owner, unless it is about to be told already.
    pub(super) fn raise(&mut self, event: AsyncEvent) {
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }
}
