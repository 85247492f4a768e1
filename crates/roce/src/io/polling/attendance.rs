//! Which thread waits for the group's descriptor: the progress thread, or a thread of the program that waits for an event
//! of the connection manager.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_port_sharing::room::with_room;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Result;

use crate::io::net::readiness::LazyReadiness;

/// The thread that waits for the group instead of the progress thread.
#[derive(Debug)]
pub(crate) struct Attendant {
    /// [`this_thread`], or 0 for the progress thread.
    thread: AtomicUsize,
    nudge: Arc<Nudge>,
}

/// Wakes the thread that waits for the group.
#[derive(Debug)]
pub struct Nudge(OwnedFd);

impl Attendant {
    pub(crate) fn new() -> Result<Self> {
        // What a process has once, it has from its first stack on.
        LazyReadiness::new(false)?;
        let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            thread: AtomicUsize::new(0),
            nudge: Arc::new(Nudge(with_room(make)?)),
        })
    }

    /// The calling thread waits from now on. `None` if another thread of the program does; otherwise whether it did not
    /// before.
    pub(crate) fn enter(&self) -> Option<bool> {
        let me = this_thread();
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        match self.thread.compare_exchange(0, me, order.0, order.1) {
            Ok(_) => Some(true),
            Err(other) => (other == me).then_some(false),
        }
    }

    /// The progress thread waits again.
    pub(crate) fn leave(&self) {
        self.thread.store(0, Ordering::Release);
    }

    pub(crate) fn nudge(&self) -> &Arc<Nudge> {
        &self.nudge
    }
}

impl Nudge {
    /// Makes the descriptor readable.
    pub fn give(&self) {
        // Fails only if 2^64 nudges are pending.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A number of the calling thread, unique while it runs, and not 0.
pub(crate) fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}
