//! A program learns of its peer's disconnect after it has polled the completions that came before it.
//!
//! Programs poll a completion queue, find nothing, and then take an event. Between the two, the acknowledgement of a last
//! message and the disconnect may both arrive. A program that then takes the disconnect destroys the queue pair and so
//! discards the completion, as if its message had failed (libfabric's ofi_rxm).

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::Step;
use portolan_provider::cm::{CmEvent, EventType};

use super::core::Core;
use super::queue::{EventQueue, HELD_AT_ONCE_MAX, Held};

/// How soon to look again whether the program has polled.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Core {
    /// Tells of a disconnect, now or when the program has polled. Call it without the state's lock.
    pub(super) fn tell_after_completions(&self, held: Held) {
        // The acknowledgement of a last message may wait in a ring or a socket, because the program reads them when it
        // polls.
        self.stack().take_arrived_for(held.qpn);
        if !self.stack().may_have_unpolled(held.qpn) {
            return held.queue.release(held.id);
        }
        // A program that does not wait for events is refused this one when it looks for it: that may be long after it
        // last polled, because another program had the processor.
        if held.queue.is_nonblocking().unwrap_or(false) {
            return held.queue.release_refusable(held.id, held.qpn);
        }
        self.wait_for_polls(held);
    }

    fn wait_for_polls(&self, held: Held) {
        let mut waiting = self.held.lock();
        if waiting.len() >= HELD_AT_ONCE_MAX {
            return held.queue.release(held.id);
        }
        waiting.push(held);
        drop(waiting);
        self.stack().wake();
    }

    /// Holds an event that a program has just taken, if it is the disconnect of a queue pair with completions that it
    /// has not polled. Each is refused once. Returns the others.
    pub(super) fn refuse_before_completions(
        &self,
        queue: &Arc<EventQueue>,
        event: CmEvent,
    ) -> Option<CmEvent> {
        if event.event != EventType::Disconnected {
            return Some(event);
        }
        let qpn = queue.take_refusable(event.id);
        let Some(qpn) = qpn.filter(|qpn| self.stack().may_have_unpolled(*qpn)) else {
            return Some(event);
        };
        let id = event.id;
        queue.hold_again(event);
        let state = self.state();
        let of_id = state.entry(id, Step::Event).map(|id| id.queue.clone()).ok();
        drop(state);
        if of_id
            .as_ref()
            .is_some_and(|of_id| Arc::ptr_eq(of_id, queue))
        {
            self.wait_for_polls(Held::new(id, qpn, queue));
            return None;
        }
        // Since the event was taken, the id was destroyed or migrated.
        let events = queue.extract(|event| event.id == id);
        for event in events {
            if let Some(of_id) = &of_id {
                of_id.push(event);
            }
        }
        None
    }

    /// Tells of the disconnects whose completions are polled, and of those that have waited long enough.
    pub(super) fn tell_held(&self) {
        let all = std::mem::take(&mut *self.held.lock());
        if all.is_empty() {
            return;
        }
        let now = Instant::now();
        let waits = |held: &Held| now < held.until && self.stack().may_have_unpolled(held.qpn);
        let (waiting, done): (Vec<_>, Vec<_>) = all.into_iter().partition(waits);
        self.held.lock().extend(waiting);
        for held in done {
            held.queue.release(held.id);
        }
    }

    /// The time until [`tell_held`](Self::tell_held) must be called.
    pub(super) fn held_due(&self) -> Option<Duration> {
        let held = self.held.lock();
        (!held.is_empty()).then_some(LOOK_AGAIN)
    }
}
