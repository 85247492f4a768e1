//! Streams whose waiting thread waits for the device itself.
//!
//! Otherwise two threads must be woken for what another process sends: the device's own thread, and then the one that
//! waits. One stream of a process can do without. Its descriptor contains both the signal and what the other processes
//! ring. Whoever finds it readable drives the device by its next call, for all streams of the process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_port_sharing::room::{aside, with_room};
use portolan_provider::traits::{DeviceWait, Notify};
use rustix::event::epoll;
use rustix::io::Result;

use super::{Core, Signal, State};
use crate::stream::queues::Drive;

/// How often a caller that is about to sleep drives the device while more and more arrives. After that, its sleep ends
/// at once.
const TURNS_MAX: usize = 8;

#[derive(Debug)]
pub(super) struct OwnWait {
    device: Box<dyn DeviceWait>,
    /// Readable while the signal is raised or the device was rung. Made when an event loop asks for one descriptor.
    both: OnceLock<OwnedFd>,
    is_given_up: AtomicBool,
}

impl OwnWait {
    pub(super) fn new(device: Box<dyn DeviceWait>) -> Self {
        Self {
            device,
            both: OnceLock::new(),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// What the other processes ring.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        if self.device.give_up()
            && let Some(both) = self.both.get()
        {
            // Both are open, and this one is in the set unless it was removed before.
            let _ = epoll::delete(both, self.device.as_fd());
        }
    }

    /// The one descriptor.
    pub(super) fn descriptor<'a>(&'a self, signal: &'a Signal) -> BorrowedFd<'a> {
        if let Some(both) = self.both.get() {
            return both.as_fd();
        }
        if self.is_given_up() {
            return signal.as_fd();
        }
        match self.make(signal) {
            Ok(made) => self.both.get_or_init(|| made).as_fd(),
            Err(_) => {
                self.give_up();
                signal.as_fd()
            }
        }
    }

    fn make(&self, signal: &Signal) -> Result<OwnedFd> {
        let both = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        // The program may be about to use the number that it has just closed.
        let both = aside(both);
        let data = epoll::EventData::new_u64(0);
        for fd in [signal.as_fd(), self.device.as_fd()] {
            epoll::add(&both, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(both)
    }
}

/// Maximum sleep of a thread whose stream has no descriptor because the process has none left.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// What a thread that waits for a stream gives to poll(2).
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// `None` if the process has no descriptor left.
    pub(super) signal: Option<BorrowedFd<'a>>,
    pub(super) device: Option<BorrowedFd<'a>>,
}

impl<'a> Descriptors<'a> {
    /// Those that there are.
    pub fn all(self) -> impl Iterator<Item = BorrowedFd<'a>> {
        self.signal.into_iter().chain(self.device)
    }

    /// How long to sleep at most, of the time that is left: nothing else may wake the thread.
    pub fn at_most(self, left: Option<Duration>) -> Option<Duration> {
        match self.signal {
            Some(_) => left,
            None => Some(left.map_or(SLEEP_MAX, |left| left.min(SLEEP_MAX))),
        }
    }
}

/// A sleep of the calling thread that also waits for the device's sockets. When it ends, handles what has arrived.
#[doc(hidden)]
#[derive(Debug)]
pub struct SocketSleep<'a>(&'a OwnWait);

impl SocketSleep<'_> {
    /// What to wait for besides the stream's descriptors.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        (0..).map_while(|number| self.0.device.socket(number))
    }
}

impl Drop for SocketSleep<'_> {
    fn drop(&mut self) {
        self.0.device.return_sockets();
    }
}

impl Core {
    /// Called by a thread that is about to sleep in poll(2), after it has prepared the descriptors. `None` if it need not
    /// wait for anything else.
    pub(crate) fn sleep_at_sockets(&self) -> Option<SocketSleep<'_>> {
        let (_, own) = self.own_wait()?;
        own.device.take_sockets().then_some(SocketSleep(own))
    }

    /// Nobody waits for the device by this stream any more.
    pub(crate) fn leave_device(&self) {
        if let Some((_, own)) = self.own_wait() {
            own.give_up();
        }
    }

    /// Handles completions. If there are none, drives the device. Returns whether there were any, or events.
    pub(super) fn collect_waiting(
        &self,
        state: &mut State,
        signal: &Signal,
        own: &OwnWait,
    ) -> bool {
        let cq = &*self.queues.receives_cq;
        if self.collect_from(state, cq, Drive::No) {
            return true;
        }
        if state.wakers.iter().any(Option::is_some) {
            own.device.drive();
            return self.collect_from(state, cq, Drive::No);
        }
        let is_called = self.drive_quietly(state, signal, own);
        let any = self.collect_from(state, cq, Drive::No);
        is_called && self.take_events(state) || any
    }

    /// Drives the device. The caller handles what arrives for the stream, so its descriptor need not tell, unless somebody
    /// else waits for it. Returns whether events may have arrived that it did not tell.
    pub(super) fn drive_quietly(&self, state: &State, signal: &Signal, own: &OwnWait) -> bool {
        let is_alone = !state.is_driven && state.wanted == [false; 2] && state.waits.is_empty();
        match is_alone {
            true => signal.quietly(|| own.device.drive()),
            false => {
                own.device.drive();
                false
            }
        }
    }

    /// Whether this stream waits for the device, and the device has something to read.
    #[cfg(feature = "tokio")]
    pub(super) fn may_have_arrived(&self) -> bool {
        self.own_wait()
            .is_some_and(|(_, own)| own.device.has_more())
    }

    /// The caller is about to sleep until the descriptor is readable.
    pub(super) fn rest_waiting(&self, own: &OwnWait) {
        for _ in 0..TURNS_MAX {
            if own.device.rest() {
                return;
            }
            own.device.drive();
        }
        self.readiness.rouse();
    }
}
