//! Outputs for the host.

use alloc::collections::VecDeque;

use portolan_provider::verbs::{AsyncEvent, Refusal, WorkCompletion};

use crate::engine::fifo::Fifo;
use crate::engine::{Completion, Placement, QpCounters, Queue};

/// Pending placements, completions and events, and the counters. Placements are bounded by the elements of one work
/// request, completions by the depths of the queues, events by one of each kind.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) placements: VecDeque<Placement>,
    /// Placements of network header bytes (UD).
    pub(super) grh_placements: VecDeque<Placement>,
    pub(super) completions: Fifo<Completion>,
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) counters: QpCounters,
    /// The request of the peer that was refused for good.
    pub(super) refusal: Option<Refusal>,
    /// The queue whose receives complete; with XRC, that of the latest message.
    pub(super) receives: Queue,
}

/// Completions that were taken together.
#[derive(Debug)]
pub struct Completions(pub(super) Fifo<Completion>);

impl Completions {
    /// All of them, oldest first.
    #[inline]
    pub fn all(&self) -> &[Completion] {
        self.0.all()
    }
}

impl Outbox {
    #[inline]
    pub(super) fn complete_send(&mut self, wc: WorkCompletion) {
        self.completions.push(Completion {
            queue: Queue::Send,
            wc,
            solicited: false,
        });
    }

    #[inline]
    pub(super) fn complete_receive(&mut self, wc: WorkCompletion, solicited: bool) {
        self.completions.push(Completion {
            queue: self.receives,
            wc,
            solicited,
        });
    }

    /// Raises an event, unless it is already pending.
    pub(super) fn raise(&mut self, event: AsyncEvent) {
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }
}
