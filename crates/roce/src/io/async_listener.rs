//! Who takes some of a device's asynchronous events: several programs' parts may have the same device open.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use portolan_provider::verbs::AsyncEvent;
use portolan_provider::{Result, Step};

use super::async_events::AsyncEvents;
use super::fork::ForkGuard;

/// Which events a listener takes.
type Wants = Box<dyn Fn(&AsyncEvent) -> bool + Send + Sync>;

/// A listener to asynchronous events of a device ([`SoftDevice::listen_async`](super::SoftDevice::listen_async)):
/// a queue of its own, and a descriptor to wait. Dropping it ends it.
pub struct AsyncListener {
    wants: Wants,
    events: AsyncEvents,
    fork: Arc<ForkGuard>,
}

impl AsyncListener {
    pub(super) fn new(limit: usize, wants: Wants, fork: Arc<ForkGuard>) -> Result<Self> {
        let events = AsyncEvents::new(limit);
        // Made now, so that it is there from then on.
        events.fd()?;
        Ok(Self {
            wants,
            events,
            fork,
        })
    }

    /// Takes the next event; `None` when there is none.
    ///
    /// # Errors
    /// `Unsupported` in a forked child, which would take its parent's.
    pub fn take(&self) -> Result<Option<AsyncEvent>> {
        self.fork.check(Step::Query)?;
        Ok(self.events.take())
    }

    /// Readable exactly while an event waits; for poll and epoll, and for the flags of fcntl(2).
    ///
    /// # Errors
    /// None once it is made.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.events.fd()
    }

    pub(super) fn wants(&self, event: &AsyncEvent) -> bool {
        (self.wants)(event)
    }

    pub(super) fn push(&self, event: AsyncEvent) -> bool {
        self.events.push(event)
    }

    pub(super) fn forget(&self, is_gone: &dyn Fn(&AsyncEvent) -> bool) {
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

#[cfg(test)]
mod tests {
    use portolan_wire::Qpn;

    use super::*;

    fn listener(wants: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static) -> Arc<AsyncListener> {
        let fork = Arc::new(ForkGuard::new().unwrap());
        Arc::new(AsyncListener::new(2, Box::new(wants), fork).unwrap())
    }

    #[test]
    fn a_listener_takes_what_it_wants_and_the_device_keeps_the_rest() {
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
    fn events_of_what_is_gone_are_forgotten_and_those_beyond_the_limit_counted() {
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
