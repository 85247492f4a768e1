//! Completion channels: a descriptor that says which completion queue has completions.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_provider::traits::CompChannel;
use portolan_provider::{Cause, Error, Result, Step};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::device::foreign;
use super::fork::ForkGuard;
use super::readiness::Readiness;

/// A completion channel. Its descriptor is readable exactly while the queue of events is not
/// empty.
///
/// A completion queue has at most one event waiting here, so the queue is as long as the number of
/// completion queues on the channel: whoever takes the event polls that queue empty anyway.
#[derive(Debug)]
pub struct SoftChannel {
    core: Arc<ChannelCore>,
    fork: Arc<ForkGuard>,
}

/// A completion channel as its completion queues know it.
#[derive(Debug)]
pub(super) struct ChannelCore {
    ready: Readiness,
    events: Mutex<VecDeque<ChannelEvent>>,
}

#[derive(Debug)]
struct ChannelEvent {
    /// Distinguishes completion queues that share a cookie.
    cq: u64,
    cookie: u64,
}

impl SoftChannel {
    pub(super) fn new(fork: Arc<ForkGuard>) -> Result<Self> {
        let ready = Readiness::new().map_err(|errno| os_error("socketpair", errno))?;
        fcntl_getfl(&ready)
            .and_then(|flags| fcntl_setfl(&ready, flags | OFlags::NONBLOCK))
            .map_err(|errno| os_error("fcntl", errno))?;
        Ok(Self {
            core: Arc::new(ChannelCore {
                ready,
                events: Mutex::default(),
            }),
            fork,
        })
    }

    /// The channel behind a trait object.
    pub(super) fn core_of(channel: &Arc<dyn CompChannel>) -> Result<Arc<ChannelCore>> {
        let channel = channel.as_any().downcast_ref::<Self>();
        channel
            .map(|channel| Arc::clone(&channel.core))
            .ok_or_else(|| foreign(Step::CreateCq, "completion channel of this device"))
    }
}

impl ChannelCore {
    /// Says that completion queue `cq` has completions.
    pub(super) fn notify(&self, cq: u64, cookie: u64) {
        let mut events = self.lock();
        if events.iter().any(|event| event.cq == cq) {
            return;
        }
        events.push_back(ChannelEvent { cq, cookie });
        if events.len() == 1 {
            self.ready.raise();
        }
    }

    /// Forgets the event of a completion queue that is gone.
    pub(super) fn forget(&self, cq: u64) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| event.cq != cq);
        if events.is_empty() && before > 0 {
            self.ready.lower();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ChannelEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompChannel for SoftChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.ready.as_fd()
    }

    fn take_event(&self) -> Result<Option<u64>> {
        // A forked child shares the descriptor with its parent, whose event it would take.
        self.fork.check(Step::PollCq)?;
        let mut events = self.core.lock();
        let event = events.pop_front();
        if event.is_some() && events.is_empty() {
            self.core.ready.lower();
        }
        Ok(event.map(|event| event.cookie))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn os_error(call: &'static str, errno: rustix::io::Errno) -> Error {
    Error::new(
        Step::CreateCq,
        Cause::Os {
            call,
            errno: errno.raw_os_error(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(channel: &SoftChannel) -> bool {
        let mut fds = [PollFd::new(&channel.core.ready, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let channel = SoftChannel::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        assert!(!readable(&channel));
        channel.core.notify(1, 11);
        channel.core.notify(2, 22);
        assert!(readable(&channel));
        assert_eq!(channel.take_event().unwrap(), Some(11));
        assert!(readable(&channel));
        assert_eq!(channel.take_event().unwrap(), Some(22));
        assert!(!readable(&channel));
        assert_eq!(channel.take_event().unwrap(), None);
    }

    #[test]
    fn a_queue_has_one_event_waiting_at_most_and_none_once_it_is_gone() {
        let channel = SoftChannel::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        for _ in 0..1000 {
            channel.core.notify(1, 11);
        }
        channel.core.notify(2, 22);
        channel.core.forget(2);
        assert_eq!(channel.take_event().unwrap(), Some(11));
        assert_eq!(channel.take_event().unwrap(), None);
        channel.core.notify(1, 11);
        channel.core.forget(1);
        assert!(!readable(&channel));
    }
}
