//! Completion channels as completion queues know them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use portolan_port_sharing::room;
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::{Mutex, MutexGuard};

use crate::io::net::readiness::LazyReadiness;

/// A completion channel.
///
/// Its descriptor is created at its first use, because many programs only poll.
///
/// The queue is as long as the number of completion queues on the channel, because a completion queue has at most one
/// event here. The thread that takes the event polls that completion queue until it is empty.
#[derive(Debug)]
pub(crate) struct ChannelCore {
    ready: LazyReadiness,
    events: Mutex<VecDeque<ChannelEvent>>,
}

#[derive(Debug)]
struct ChannelEvent {
    cq: u64,
    cookie: u64,
}

impl ChannelCore {
    pub(crate) fn new() -> Result<Self> {
        let ready = LazyReadiness::new(true).map_err(|errno| os_error("eventfd", errno))?;
        Ok(Self {
            ready,
            events: Mutex::default(),
        })
    }

    /// Takes the oldest event and returns its cookie.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut events = self.lock();
        let event = events.pop_front();
        if event.is_some() && events.is_empty() {
            self.ready.lower();
        }
        event.map(|event| event.cookie)
    }

    /// Queues the event of completion queue `cq`.
    pub(crate) fn notify(&self, cq: u64, cookie: u64) {
        let mut events = self.lock();
        if events.iter().any(|event| event.cq == cq) {
            return;
        }
        events.push_back(ChannelEvent { cq, cookie });
        if events.len() == 1 {
            self.ready.raise();
        }
    }

    /// Removes the event of a destroyed completion queue.
    pub(crate) fn forget(&self, cq: u64) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| event.cq != cq);
        if events.is_empty() && before > 0 {
            self.ready.lower();
        }
    }

    /// Its descriptor, readable while an event is queued. It is created at the first call.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let events = self.lock();
        let descriptor = self.ready.descriptor(!events.is_empty());
        descriptor.map_err(|errno| os_error("socketpair", errno))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ChannelEvent>> {
        self.events.lock()
    }
}

impl AsFd for ChannelCore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let events = self.lock();
        self.ready.descriptor_or_stand_in(!events.is_empty())
    }
}

fn os_error(call: &'static str, errno: rustix::io::Errno) -> Error {
    Error::new(Step::CreateCq, room::cause(call, errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(channel: &ChannelCore) -> bool {
        let mut fds = [PollFd::new(channel, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let channel = ChannelCore::new().unwrap();
        assert!(!readable(&channel));
        channel.notify(1, 11);
        channel.notify(2, 22);
        assert!(readable(&channel));
        assert_eq!(channel.take(), Some(11));
        assert!(readable(&channel));
        assert_eq!(channel.take(), Some(22));
        assert!(!readable(&channel));
        assert_eq!(channel.take(), None);
    }

    #[test]
    fn a_queue_has_at_most_one_waiting_event_and_none_after_its_destruction() {
        let channel = ChannelCore::new().unwrap();
        for _ in 0..1000 {
            channel.notify(1, 11);
        }
        channel.notify(2, 22);
        channel.forget(2);
        assert_eq!(channel.take(), Some(11));
        assert_eq!(channel.take(), None);
        channel.notify(1, 11);
        channel.forget(1);
        assert!(!readable(&channel));
    }
}
