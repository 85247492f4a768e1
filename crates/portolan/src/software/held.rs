//! A program learns of its peer's disconnect after it has polled the completions that came before it.
//!
//! Programs poll a completion queue, find nothing, and then take an event. Between the two, the acknowledgement of a last
//! message and the disconnect may both arrive. A program that then takes the disconnect destroys the queue pair and so
//! discards the completion, as if its message had failed (libfabric's ofi_rxm).

use std::time::{Duration, Instant};

use super::core::Core;
use super::queue::Held;

/// How soon to look again whether the program has polled.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Disconnects that wait at the same time. Others do not wait: when very many connections end at once, to look at each
/// again and again would delay all.
const WAITING_MAX: usize = 64;

impl Core {
    /// Tells of a disconnect, now or when the program has polled. Call it without the state's lock.
    pub(super) fn tell_after_completions(&self, held: Held) {
        // The acknowledgement of a last message may wait in a ring or a socket, because the program reads them when it
        // polls.
        self.stack().take_arrived_for(held.qpn);
        let mut waiting = self.held.lock();
        if waiting.len() == WAITING_MAX || !self.stack().may_have_unpolled(held.qpn) {
            return held.queue.release(held.id);
        }
        waiting.push(held);
        drop(waiting);
        self.stack().wake();
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
