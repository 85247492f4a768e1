//! Descriptors that are readable while they ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::{Error, Result, Step};
use rustix::event::{EventfdFlags, eventfd};

/// Creates a bell that does not ring.
pub(crate) fn make_bell(step: Step) -> Result<OwnedFd> {
    with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
        .map_err(|errno| Error::new(step, room::cause("eventfd", errno)))
}

/// Makes it readable.
pub(crate) fn ring(bell: &OwnedFd) {
    // Cannot overflow: it is written at most once between reads, or rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes it unreadable.
pub(crate) fn silence(bell: &OwnedFd) {
    // Empty if it does not ring.
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}

/// A bell that another waiter rings when it has dispatched completions, while this one is armed.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptor: OwnedFd,
    is_armed: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            descriptor: make_bell(Step::Transfer)?,
            is_armed: AtomicBool::new(false),
        })
    }

    /// Makes it unreadable until the next ring.
    pub(crate) fn arm(&self) {
        silence(&self.descriptor);
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Makes it readable, if it is armed.
    pub(crate) fn ring(&self) {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            ring(&self.descriptor);
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
