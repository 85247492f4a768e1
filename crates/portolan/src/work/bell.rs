//! Descriptors that become readable when another waiter has dispatched completions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::{Error, Result, Step};
use rustix::event::{EventfdFlags, eventfd};

/// While armed, each dispatch makes this descriptor readable.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptor: OwnedFd,
    is_armed: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            descriptor: descriptor()?,
            is_armed: AtomicBool::new(false),
        })
    }

    /// Makes it unreadable until the next ring.
    pub(crate) fn arm(&self) {
        // Fails if it has not rung, which is harmless.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Makes it readable, if it is armed.
    pub(super) fn ring(&self) {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            // The write fails only if the counter would exceed 2^64 - 2.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Creates an event counter of 0.
pub(super) fn descriptor() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    with_room(|| eventfd(0, flags))
        .map_err(|errno| Error::new(Step::Transfer, room::cause("eventfd", errno)))
}
