//! A bounded queue of asynchronous events with a descriptor to wait for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_port_sharing::room;
use portolan_provider::verbs::AsyncEvent;
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::{Mutex, MutexGuard};

use crate::io::net::readiness::Readiness;

/// Events that are not taken yet.
///
/// The descriptor is created at the first call of `fd`, because most programs never call it. It is readable exactly
/// while an event is queued.
#[derive(Debug)]
pub(crate) struct EventQueue {
    limit: usize,
    queue: Mutex<VecDeque<AsyncEvent>>,
    ready: OnceLock<Readiness>,
    lost: AtomicU64,
}

impl EventQueue {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            queue: Mutex::default(),
            ready: OnceLock::new(),
            lost: AtomicU64::new(0),
        }
    }

    /// Readable while an event waits.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>> {
        // Under the lock, so that no event is added between creating the descriptor and checking the queue.
        let queue = self.lock();
        if let Some(ready) = self.ready.get() {
            return Ok(ready.as_fd());
        }
        let made = Readiness::new()
            .map_err(|errno| Error::new(Step::Query, room::cause("socketpair", errno)))?;
        let ready = self.ready.get_or_init(|| made);
        if !queue.is_empty() {
            ready.raise();
        }
        Ok(ready.as_fd())
    }

    /// Adds an event. Returns false if the queue is full. The event is then lost, and counted.
    pub(crate) fn push(&self, event: AsyncEvent) -> bool {
        let mut queue = self.lock();
        if queue.len() >= self.limit {
            self.count_lost();
            return false;
        }
        queue.push_back(event);
        if queue.len() == 1
            && let Some(ready) = self.ready.get()
        {
            ready.raise();
        }
        true
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut queue = self.lock();
        let event = queue.pop_front();
        self.lower_if_empty(&queue, event.is_some());
        event
    }

    /// Removes the events of an object that is destroyed.
    pub(crate) fn forget(&self, is_gone: impl Fn(&AsyncEvent) -> bool) {
        let mut queue = self.lock();
        let before = queue.len();
        queue.retain(|event| !is_gone(event));
        let taken = queue.len() < before;
        self.lower_if_empty(&queue, taken);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn lower_if_empty(&self, queue: &VecDeque<AsyncEvent>, taken: bool) {
        if taken
            && queue.is_empty()
            && let Some(ready) = self.ready.get()
        {
            ready.lower();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.queue.lock()
    }
}

#[cfg(test)]
mod tests {
    use portolan_provider::verbs::Cqn;
    use portolan_wire::Qpn;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const NOW: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };

    fn readable(events: &EventQueue) -> bool {
        let fd = events.fd().unwrap();
        poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&NOW),
        )
        .unwrap()
            == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_an_event_waits_even_an_earlier_one() {
        let events = EventQueue::new(8);
        assert!(events.push(AsyncEvent::PortActive(1)));
        assert!(readable(&events));
        assert!(events.push(AsyncEvent::GidChange(1)));
        assert_eq!(events.take(), Some(AsyncEvent::PortActive(1)));
        assert!(readable(&events));
        assert_eq!(events.take(), Some(AsyncEvent::GidChange(1)));
        assert!(!readable(&events));
        assert_eq!(events.take(), None);
        assert!(events.push(AsyncEvent::CqErr(Cqn(1))));
        assert!(readable(&events));
    }

    #[test]
    fn events_of_destroyed_objects_are_dropped_and_the_descriptor_follows() {
        let events = EventQueue::new(8);
        assert!(!readable(&events));
        events.push(AsyncEvent::QpFatal(Qpn::new(7)));
        events.forget(|event| *event == AsyncEvent::QpFatal(Qpn::new(8)));
        assert!(readable(&events));
        events.forget(|event| *event == AsyncEvent::QpFatal(Qpn::new(7)));
        assert!(!readable(&events));
        assert_eq!(events.take(), None);
    }

    #[test]
    fn beyond_its_limit_events_are_lost_and_counted() {
        let events = EventQueue::new(2);
        let event = AsyncEvent::CqErr(Cqn(1));
        let pushed: Vec<_> = (0..4).map(|_| events.push(event)).collect();
        assert_eq!(pushed, [true, true, false, false]);
        assert_eq!(events.lost(), 2);
    }
}
