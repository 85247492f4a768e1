//! Doorbells of progress threads: an eventfd for this process's thread, a message on the link for another's.
//!
//! The eventfd is never passed to another process. Processes share an open file's flags, so the other one could clear
//! `O_NONBLOCK` and fill the counter, and ringing would block forever.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use portolan_port_sharing::room::with_room;
use portolan_port_sharing::{MemberLink, PrivateFd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::cursor::Sleepers;
use super::message::{RING, VERSION};
use super::waiter_bell;

/// An eventfd. A forked child has none.
#[derive(Debug)]
pub(crate) struct Bell(PrivateFd);

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        with_room(|| PrivateFd::make(|| eventfd(0, flags))).map(Self)
    }

    pub(crate) fn ring(&self) {
        // Fails only if the counter is full, and then the eventfd is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Resets it. The caller looks for packets after this.
    pub(crate) fn reset(&self) {
        // Fails only if it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes the process at the other end of a link.
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Doorbell {
    link: Weak<MemberLink>,
    /// Wakes its waiting thread.
    waiter: Option<PrivateFd>,
}

impl Doorbell {
    pub(super) fn of(link: &Arc<MemberLink>, waiter: Option<PrivateFd>) -> Self {
        let link = Arc::downgrade(link);
        Self { link, waiter }
    }

    /// Wakes those who sleep there. Never waits.
    #[inline]
    pub(crate) fn wake(&self, sleepers: Sleepers) {
        if sleepers.any() {
            self.wake_each(sleepers);
        }
    }

    #[cold]
    fn wake_each(&self, sleepers: Sleepers) {
        if sleepers.waiter
            && let Some(waiter) = &self.waiter
        {
            waiter_bell::ring(waiter);
        }
        if sleepers.thread {
            self.ring();
        }
    }

    /// Wakes the progress thread. Never waits. Does nothing if the link has ended.
    pub(crate) fn ring(&self) {
        if let Some(link) = self.link.upgrade() {
            // Fails if the connection is full, and then the other process wakes anyway, or if that process is gone.
            let _ = link.send(&[VERSION, RING], &[]);
        }
    }
}
