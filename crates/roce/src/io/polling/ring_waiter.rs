//! Whether a thread of the program waits for the rings itself, so that no other thread has to wake it.
//!
//! The thread, or an event loop, has a descriptor that other processes ring ([`waiter_bell`]), and drives the device
//! when it is woken. The progress thread leaves the rings to it, as to a poller. If it does not come, the progress thread
//! reads them at its next check for pollers, and is woken for everything that follows until the thread waits again.
//!
//! [`waiter_bell`]: crate::io::net::shm::waiter_bell

use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub(crate) struct RingWaiter {
    is_taken: AtomicBool,
    /// It waits, or is about to. Its bell may have been rung.
    rests: AtomicBool,
}

impl RingWaiter {
    /// The caller waits from now on. `false` if another one does.
    pub(crate) fn take(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::AcqRel)
    }

    /// Undoes [`take`](Self::take).
    pub(crate) fn release(&self) {
        self.rests.store(false, Ordering::SeqCst);
        self.is_taken.store(false, Ordering::Release);
    }

    /// The waiter is about to sleep.
    pub(crate) fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
    }

    pub(crate) fn rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }

    /// The waiter is awake, or it did not come. Returns whether it rested.
    pub(crate) fn rise(&self) -> bool {
        self.rests.load(Ordering::Relaxed) && self.rests.swap(false, Ordering::SeqCst)
    }
}
