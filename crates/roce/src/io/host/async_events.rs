//! Asynchronous events of a device: a queue for its owner, and listeners that take some events instead.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use portolan_provider::Result;
use portolan_provider::verbs::AsyncEvent;
use portolan_threads::lock::RwLock;

use crate::io::host::async_listener::AsyncListener;
use crate::io::host::event_queue::EventQueue;

#[derive(Debug)]
pub(crate) struct AsyncEvents {
    queue: EventQueue,
    /// Listeners take some of the events before they reach the queue.
    listeners: RwLock<Vec<Weak<AsyncListener>>>,
}

impl AsyncEvents {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            queue: EventQueue::new(limit),
            listeners: RwLock::default(),
        }
    }

    /// Readable while an event waits.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.queue.fd()
    }

    /// Adds a listener, for as long as it lives.
    pub(crate) fn add_listener(&self, listener: &Arc<AsyncListener>) {
        let mut listeners = self.listeners.write();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    fn for_each_listener(&self, mut each: impl FnMut(&AsyncListener)) {
        let listeners = self.listeners.read();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            each(&listener);
        }
    }

    /// Adds an event, or gives it to the listeners that want it.
    ///
    /// Returns false if the queue is full. The event is then lost, and counted.
    pub(crate) fn push(&self, event: AsyncEvent) -> bool {
        let (mut is_wanted, mut is_kept) = (false, true);
        self.for_each_listener(|listener| {
            if listener.wants(&event) {
                is_wanted = true;
                is_kept &= listener.push(event);
            }
        });
        if !is_wanted {
            return self.queue.push(event);
        }
        if !is_kept {
            self.queue.count_lost();
        }
        is_kept
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        self.queue.take()
    }

    /// Removes the events of an object that is destroyed.
    pub(crate) fn forget(&self, is_gone: impl Fn(&AsyncEvent) -> bool) {
        self.for_each_listener(|listener| listener.forget(&is_gone));
        self.queue.forget(is_gone);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.queue.lost()
    }
}

#[cfg(test)]
mod tests {
    use portolan_wire::Qpn;

    use super::*;
    use crate::io::host::async_listener::AsyncListener;
    use crate::io::host::entry::Entry;

    fn listener(wants: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static) -> Arc<AsyncListener> {
        let entry = Arc::new(Entry::new());
        Arc::new(AsyncListener::new(2, Box::new(wants), entry).unwrap())
    }

    #[test]
    fn a_listener_takes_its_events_and_the_device_keeps_the_rest() {
        let events = AsyncEvents::new(8);
        let (one, all) = (
            listener(|event| *event == AsyncEvent::GidChange(1)),
            listener(|_| true),
        );
        events.add_listener(&one);
        events.push(AsyncEvent::PortErr(1));
        events.push(AsyncEvent::GidChange(1));
        assert_eq!(one.take().unwrap(), Some(AsyncEvent::GidChange(1)));
        assert_eq!(one.take().unwrap(), None);
        assert_eq!(events.take(), Some(AsyncEvent::PortErr(1)));
        events.add_listener(&all);
        events.push(AsyncEvent::GidChange(1));
        for listener in [&one, &all] {
            assert_eq!(listener.take().unwrap(), Some(AsyncEvent::GidChange(1)));
        }
        assert_eq!(events.take(), None);
        drop((one, all));
        events.push(AsyncEvent::GidChange(1));
        assert_eq!(events.take(), Some(AsyncEvent::GidChange(1)));
    }

    #[test]
    fn events_of_destroyed_objects_are_dropped_and_those_beyond_the_limit_counted() {
        let events = AsyncEvents::new(8);
        let all = listener(|_| true);
        events.add_listener(&all);
        let of = |qpn| AsyncEvent::QpFatal(Qpn::new(qpn));
        let kept = [1, 2, 3].map(|qpn| events.push(of(qpn)));
        assert_eq!((kept, events.lost()), ([true, true, false], 1));
        events.forget(|event| *event == of(1));
        assert_eq!(all.take().unwrap(), Some(of(2)));
        assert_eq!(all.take().unwrap(), None);
    }
}
