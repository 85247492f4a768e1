//! Completion queues as queue pairs know them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use portolan_provider::Result;
use portolan_provider::traits::Notify;
use portolan_provider::verbs::{Cqn, WorkCompletion};
use portolan_threads::biased::{Mutex, MutexGuard};
use portolan_wire::Qpn;

use crate::engine::{Completion, CompletionQueue};
use crate::io::host::completion_channel::{ChannelCore, EventSource};
use crate::io::net::counters::Cell;
use crate::io::polling::clock::{Clock, as_nanos};

#[derive(Debug)]
pub(crate) struct CqCore {
    this: Weak<Self>,
    id: u64,
    queue: Mutex<CompletionQueue>,
    event: Option<CqEvent>,
    /// `None` unless the queue timestamps its completions.
    stamps: Option<Clock>,
    /// Polling the queue changes nothing. Readable without its lock.
    quiet: AtomicBool,
}

/// What a completion queue does when an event is due.
#[derive(Debug)]
pub(crate) enum CqEvent {
    /// It queues the event on a channel, with a cookie.
    Queue(Arc<ChannelCore>, u64),
    /// It calls.
    Call(Arc<dyn Notify>),
}

/// The completion queue lost a completion.
pub(crate) struct Overflowed;

impl CqCore {
    /// Creates a completion queue.
    pub(crate) fn new(
        queue: CompletionQueue,
        event: Option<CqEvent>,
        stamps: Option<Clock>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            id: next_id(),
            queue: Mutex::new(queue),
            event,
            stamps,
            quiet: AtomicBool::new(true),
        })
    }

    /// Numbers repeat after 2^32 completion queues.
    pub(crate) fn number(&self) -> Cqn {
        Cqn(self.id as u32)
    }

    /// Adds completions, at least one, and raises an event if one was requested.
    ///
    /// If the queue is full, completions are lost and counted in `lost`.
    ///
    /// # Errors
    /// The queue has lost a completion, one of these or an earlier one.
    #[inline(always)]
    pub(crate) fn deliver(
        &self,
        completions: &[Completion],
        lost: &Cell,
    ) -> std::result::Result<(), Overflowed> {
        self.add(completions, lost).announce()
    }

    /// The first step of [`deliver`](Self::deliver).
    #[inline(always)]
    pub(crate) fn add(&self, completions: &[Completion], lost: &Cell) -> Added<'_> {
        let mut queue = self.queue.lock();
        let count = match self.stamps {
            None => queue.push_all(completions),
            // Under the lock, so that timestamps increase along the queue.
            Some(clock) => push_stamped(&mut queue, completions, clock),
        };
        if count > 0 {
            lost.add(count);
        }
        Added { cq: self, queue }
    }

    /// Removes the completions of a destroyed queue pair.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut queue = self.queue.lock();
        queue.forget(qpn);
        self.note_quiet(&queue);
    }

    /// Whether a completion of a queue pair may be queued.
    pub(crate) fn may_have(&self, qpn: Qpn) -> bool {
        !self.quiet.load(Ordering::Acquire) && self.queue.lock().may_have(qpn)
    }

    /// Takes completions. Returns their number, and whether the queue is armed.
    #[inline(always)]
    pub(crate) fn poll(&self, out: &mut [WorkCompletion]) -> (usize, bool) {
        if self.is_quiet() {
            return (0, false);
        }
        self.poll_locked(out)
    }

    /// Whether polling the queue changes nothing.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn poll_locked(&self, out: &mut [WorkCompletion]) -> (usize, bool) {
        let mut queue = self.queue.lock();
        let taken = queue.poll(out);
        self.notify_if_due(&mut queue);
        self.note_quiet(&queue);
        (taken, queue.is_armed())
    }

    /// Requests an event for the next completion, or for one that is already queued.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut queue = self.queue.lock();
        queue.arm(solicited_only);
        self.notify_if_due(&mut queue);
        self.note_quiet(&queue);
    }

    /// Removes the event queued in the channel.
    pub(crate) fn forget_event(&self) {
        if let Some(CqEvent::Queue(channel, _)) = &self.event {
            channel.forget(&self.this());
        }
    }

    fn this(&self) -> Weak<dyn EventSource> {
        Weak::<Self>::clone(&self.this)
    }

    /// Whether one thread of the program, as far as is known, waits for this queue's events.
    pub(crate) fn has_one_thread(&self) -> bool {
        matches!(&self.event, Some(CqEvent::Queue(channel, _)) if channel.has_one_thread())
    }

    #[inline]
    fn notify_if_due(&self, queue: &mut CompletionQueue) {
        if queue.take_notification() {
            // The woken thread may poll before this one releases the lock, and must find the completion.
            self.quiet.store(false, Ordering::Release);
            self.notify();
        }
    }

    fn notify(&self) {
        match &self.event {
            Some(CqEvent::Queue(channel, cookie)) => channel.notify(self.this(), *cookie),
            Some(CqEvent::Call(notify)) => notify.notify(),
            None => {}
        }
    }

    /// Whether it calls when an event is due.
    pub(crate) fn calls(&self) -> bool {
        matches!(self.event, Some(CqEvent::Call(_)))
    }

    /// Stores, under the lock, whether polling changes anything.
    #[inline]
    fn note_quiet(&self, queue: &CompletionQueue) {
        self.quiet.store(queue.is_quiet(), Ordering::Release);
    }

    /// Maximum number of completions.
    pub(crate) fn capacity(&self) -> u32 {
        self.queue.lock().capacity()
    }

    /// Changes the maximum number of completions.
    pub(crate) fn resize(&self, capacity: u32, limit: u32) -> Result<()> {
        self.queue.lock().resize(capacity, limit)
    }
}

/// Completions that were added to a queue, which is still locked.
pub(crate) struct Added<'a> {
    cq: &'a CqCore,
    queue: MutexGuard<'a, CompletionQueue>,
}

impl Added<'_> {
    /// Raises an event if one was requested, and unlocks the queue.
    ///
    /// # Errors
    /// The queue has lost a completion, one of these or an earlier one.
    #[inline(always)]
    pub(crate) fn announce(mut self) -> std::result::Result<(), Overflowed> {
        // Before the notification: the woken thread may poll before this one releases the lock, and must find the
        // completions.
        self.cq.quiet.store(false, Ordering::Release);
        if self.queue.take_notification() {
            self.cq.notify();
        }
        match self.queue.is_overflowed() {
            true => Err(Overflowed),
            false => Ok(()),
        }
    }
}

impl EventSource for CqCore {
    fn event_taken(&self) {
        self.queue.lock().event_taken();
    }
}

#[cold]
fn push_stamped(queue: &mut CompletionQueue, completions: &[Completion], clock: Clock) -> usize {
    let push = |completion: &Completion| {
        let mut stamped = *completion;
        stamped.wc.timestamp_ns = as_nanos(clock.now());
        queue.push_all(&[stamped])
    };
    completions.iter().map(push).sum()
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
