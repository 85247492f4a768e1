//! What wakes a progress thread: an event counter for this process's, a message on the link for another's.
//!
//! An event counter is never handed to another process. Open files are shared with their flags, so the other process could
//! clear `O_NONBLOCK` and fill the counter, and ringing would wait without end.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use portolan_port_sharing::room::with_room;
use portolan_port_sharing::{MemberLink, PrivateFd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::message::{RING, VERSION};

/// An event counter. A forked child has none.
#[derive(Debug)]
pub(crate) struct Bell(PrivateFd);

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        with_room(|| PrivateFd::make(|| eventfd(0, flags))).map(Self)
    }

    pub(crate) fn ring(&self) {
        // It fails only if it was rung so often that it is heard anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// It is heard, and quiet. The caller looks at what it was rung for after this.
    pub(crate) fn heard(&self) {
        // It fails only if it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes the process at the other end of a link.
#[derive(Clone, Debug)]
pub(crate) struct Doorbell(Weak<MemberLink>);

impl Doorbell {
    pub(super) fn of(link: &Arc<MemberLink>) -> Self {
        Self(Arc::downgrade(link))
    }

    /// Never waits. Does nothing if the link has ended.
    pub(crate) fn ring(&self) {
        if let Some(link) = self.0.upgrade() {
            // It fails if the other process has not read so many messages that it wakes anyway, or is gone.
            let _ = link.send(&[VERSION, RING], &[]);
        }
    }
}
