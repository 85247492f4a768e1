//! Interrupts a wait for datagrams from another thread, by an eventfd in the same poll.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

use crate::transport::Wake;

#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Waker {
    /// Creates an eventfd that is not readable yet.
    ///
    /// # Errors
    /// The errno, positive.
    pub(super) fn new() -> Result<Self, i32> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        eventfd(0, flags)
            .map(Self)
            .map_err(rustix::io::Errno::raw_os_error)
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// Consumes the pending wakeups.
    pub(super) fn clear(&self) {
        // An empty counter is fine.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl Wake for Waker {
    fn wake(&self) {
        // A counter at its maximum wakes the waiter as well.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}
