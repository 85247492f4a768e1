//! The queue of a channel: events in order, and a descriptor that is readable while there are some.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_provider::cm::{CmEvent, IdNumber};
use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::lock;

/// Events of a channel that wait to be taken, and the ids they are of. Their number is bounded by the
/// ids': an id has a bounded number of events in its life, and of those that its owner writes at a
/// time.
#[derive(Debug)]
pub(super) struct EventQueue {
    waiting: Mutex<VecDeque<CmEvent>>,
    ids: Mutex<HashSet<IdNumber>>,
    /// An eventfd, blocking until its owner says otherwise.
    ready: OwnedFd,
    sleepers: Mutex<Sleepers>,
}

/// Who waits as the kernel's GET_EVENT does: in a call that a signal interrupts or that is restarted, as its handler
/// says. poll(2) never is, so they read; not the owner's descriptor, whose count says whether events wait.
#[derive(Debug, Default)]
struct Sleepers {
    count: usize,
    /// An eventfd of one sleeper's wake-up each, made for the first.
    alarm: Option<Arc<OwnedFd>>,
}

impl EventQueue {
    pub(super) fn new() -> Result<Self> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|errno| os_error("eventfd", Step::OpenChannel, errno))?;
        Ok(Self {
            waiting: Mutex::default(),
            ids: Mutex::default(),
            ready,
            sleepers: Mutex::default(),
        })
    }

    pub(super) fn push(&self, event: CmEvent) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back(event);
        if waiting.len() == 1 {
            // Fails only at a count of 2^64 - 1; it is 0 or 1 here.
            let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
        }
        drop(waiting);
        let sleepers = lock(&self.sleepers);
        if let (1.., Some(alarm)) = (sleepers.count, &sleepers.alarm) {
            let _ = rustix::io::write(alarm, &1u64.to_ne_bytes());
        }
    }

    /// Waits until an event is there. It may be another's by then.
    pub(super) fn sleep(&self) -> Result<()> {
        let alarm = {
            let mut sleepers = lock(&self.sleepers);
            // Looked at under the lock: who pushes after this sees a sleeper.
            if !self.is_empty() {
                return Ok(());
            }
            let alarm = match &sleepers.alarm {
                Some(alarm) => alarm.clone(),
                None => {
                    let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
                    let made = eventfd(0, flags);
                    Arc::new(made.map_err(|errno| os_error("eventfd", Step::Event, errno))?)
                }
            };
            sleepers.alarm = Some(alarm.clone());
            sleepers.count += 1;
            alarm
        };
        let woken = rustix::io::read(&*alarm, &mut [0; 8]);
        lock(&self.sleepers).count -= 1;
        woken
            .map(drop)
            .map_err(|errno| os_error("read", Step::Event, errno))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    pub(super) fn pop(&self) -> Option<CmEvent> {
        let mut waiting = lock(&self.waiting);
        let event = waiting.pop_front()?;
        if waiting.is_empty() {
            self.clear();
        }
        Some(event)
    }

    /// Takes out the events that `belongs` says, in order.
    pub(super) fn extract(&self, belongs: impl Fn(&CmEvent) -> bool) -> Vec<CmEvent> {
        let mut waiting = lock(&self.waiting);
        let had = !waiting.is_empty();
        let (out, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition(|event| belongs(event));
        *waiting = kept.into();
        if had && waiting.is_empty() {
            self.clear();
        }
        out
    }

    /// Notes that events of this id arrive here.
    pub(super) fn enroll(&self, id: IdNumber) {
        lock(&self.ids).insert(id);
    }

    /// Notes that they do so no more.
    pub(super) fn strike(&self, id: IdNumber) {
        lock(&self.ids).remove(&id);
    }

    /// The ids whose events arrive here.
    pub(super) fn ids(&self) -> Vec<IdNumber> {
        lock(&self.ids).iter().copied().collect()
    }

    /// Whether the owner set `O_NONBLOCK` on the descriptor.
    pub(super) fn is_nonblocking(&self) -> Result<bool> {
        let flags = rustix::fs::fcntl_getfl(&self.ready);
        let flags = flags.map_err(|errno| os_error("fcntl", Step::Event, errno))?;
        Ok(flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// Waits until the descriptor is readable, for `timeout` at most.
    pub(super) fn wait_readable(&self, timeout: Option<Duration>) -> Result<()> {
        let mut fds = [PollFd::new(&self.ready, PollFlags::IN)];
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(os_error("poll", Step::Event, errno)),
        }
    }

    fn clear(&self) {
        // Looked at first: the owner has the descriptor too, and what it read itself is not there to be
        // read any more.
        let mut fds = [PollFd::new(&self.ready, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) == Ok(1) {
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

fn os_error(call: &'static str, step: Step, errno: Errno) -> Error {
    let errno = errno.raw_os_error();
    Error::new(step, Cause::Os { call, errno })
}
