//! Listeners to asynchronous events: several parts of a program may have the same device open.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use portolan_provider::verbs::AsyncEvent;
use portolan_provider::{Result, Step};

use crate::io::host::entry::Entry;
use crate::io::host::event_queue::EventQueue;

type Wants = Box<dyn Fn(&AsyncEvent) -> bool + Send + Sync>;

/// Takes some of a device's asynchronous events ([`SoftDevice::listen_async`](crate::io::SoftDevice::listen_async)).
///
/// It has its own queue and a descriptor to wait for. Dropping it ends it.
pub struct AsyncListener {
    wants: Wants,
    events: EventQueue,
    entry: Arc<Entry>,
}

impl AsyncListener {
    pub(crate) fn new(limit: usize, wants: Wants, entry: Arc<Entry>) -> Result<Self> {
        let events = EventQueue::new(limit);
        // Create the descriptor here, so that `fd` cannot fail later.
        events.fd()?;
        Ok(Self {
            wants,
            events,
            entry,
        })
    }

    /// Takes the next event, or returns `None`.
    ///
    /// # Errors
    /// `Unsupported` in a forked child, whose queue is a copy of its parent's.
    pub fn take(&self) -> Result<Option<AsyncEvent>> {
        self.entry.check(Step::Query)?;
        Ok(self.events.take())
    }

    /// Readable exactly while an event is queued. For poll and epoll, and for the flags of fcntl(2).
    ///
    /// # Errors
    /// None: `new` has created the descriptor.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.events.fd()
    }

    pub(crate) fn wants(&self, event: &AsyncEvent) -> bool {
        (self.wants)(event)
    }

    pub(crate) fn push(&self, event: AsyncEvent) -> bool {
        self.events.push(event)
    }

    pub(crate) fn forget(&self, is_gone: &dyn Fn(&AsyncEvent) -> bool) {
        self.events.forget(is_gone);
    }
}

impl fmt::Debug for AsyncListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncListener")
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}
