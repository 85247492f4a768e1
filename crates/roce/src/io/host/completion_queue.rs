//! Completion queues as queue pairs know them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_provider::verbs::Cqn;
use portolan_threads::lock::{Mutex, MutexGuard};
use portolan_wire::Qpn;

use crate::engine::{Completion, CompletionQueue};
use crate::io::host::completion_channel::ChannelCore;
use crate::io::net::counters::Cell;
use crate::io::polling::clock::{Clock, as_nanos};

#[derive(Debug)]
pub(crate) struct CqCore {
    id: u64,
    queue: Mutex<CompletionQueue>,
    event: Option<(Arc<ChannelCore>, u64)>,
    /// `None` unless the queue timestamps its completions.
    stamps: Option<Clock>,
}

/// The completion queue lost a completion.
pub(crate) struct Overflowed;

impl CqCore {
    /// Creates a completion queue whose events go to a channel with a cookie.
    pub(crate) fn new(
        queue: CompletionQueue,
        event: Option<(Arc<ChannelCore>, u64)>,
        stamps: Option<Clock>,
    ) -> Self {
        Self {
            id: next_id(),
            queue: Mutex::new(queue),
            event,
            stamps,
        }
    }

    /// Numbers repeat after 2^32 completion queues.
    pub(crate) fn number(&self) -> Cqn {
        Cqn(self.id as u32)
    }

    /// Adds a completion, and raises an event if one was requested.
    ///
    /// If the queue is full, the completion is lost and counted in `lost`.
    ///
    /// # Errors
    /// The queue has lost a completion, this one or an earlier one.
    pub(crate) fn deliver(&self, completion: &Completion, lost: &Cell) -> Result<(), Overflowed> {
        let mut queue = self.lock();
        let mut wc = completion.wc;
        if let Some(clock) = self.stamps {
            // Under the lock, so that timestamps increase along the queue.
            wc.timestamp_ns = as_nanos(clock.now());
        }
        if queue.push(wc, completion.solicited).is_err() {
            lost.up();
        }
        self.notify_if_due(&mut queue);
        if queue.is_overflowed() {
            Err(Overflowed)
        } else {
            Ok(())
        }
    }

    /// Removes the completions of a destroyed queue pair.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.lock().forget(qpn);
    }

    /// Requests an event for the next completion, or for one that is already queued.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut queue = self.lock();
        queue.arm(solicited_only);
        self.notify_if_due(&mut queue);
    }

    /// Removes the event queued in the channel.
    pub(crate) fn forget_event(&self) {
        if let Some((channel, _)) = &self.event {
            channel.forget(self.id);
        }
    }

    fn notify_if_due(&self, queue: &mut CompletionQueue) {
        if queue.take_notification()
            && let Some((channel, cookie)) = &self.event
        {
            channel.notify(self.id, *cookie);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CompletionQueue> {
        self.queue.lock()
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
