//! How far the writer and the reader of a ring are, and when the reader is to be woken.
//!
//! Positions count bytes from the start of the ring's life. The writer moves `tail`, the reader `head`. A reader that
//! sleeps has said so in `asleep`, and then looked once more. The writer first moves `tail`, then looks whether the
//! reader had read everything and sleeps: whatever the order, one of the two sees the other (Dekker's algorithm). The
//! same holds, the other way round, for a writer that waits for room. A model checker goes through every order
//! (`tests/shm_cursor.rs`).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The writer's word: how far it has written, and whether it waits for room.
#[derive(Debug)]
pub(crate) struct Tail {
    position: AtomicU64,
    wants_room: AtomicU32,
}

/// The reader's word on one ring: how far it has read.
#[derive(Debug)]
pub(crate) struct Head {
    position: AtomicU64,
}

/// Whether the reader of a process's rings has to be woken.
#[derive(Debug)]
pub(crate) struct Asleep(AtomicU32);

impl Tail {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self {
            position: AtomicU64::new(0),
            wants_room: AtomicU32::new(0),
        }
    }

    /// How far is written, for the reader: what lies before can be read.
    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// The writer has written up to `to`, after `from`. Returns whether the reader is to be woken.
    #[inline]
    pub(crate) fn publish(&self, from: u64, to: u64, head: &Head, asleep: &Asleep) -> bool {
        self.position.store(to, Ordering::Release);
        fence(Ordering::SeqCst);
        asleep.0.load(Ordering::Relaxed) != 0 && head.position.load(Ordering::Relaxed) == from
    }

    /// The writer waits for room. It looks once more after this.
    pub(crate) fn want_room(&self) {
        self.wants_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The writer does not wait any more.
    pub(crate) fn have_room(&self) {
        self.wants_room.store(0, Ordering::Relaxed);
    }
}

impl Head {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self {
            position: AtomicU64::new(0),
        }
    }

    /// How far is read, for the writer: what lies before can be overwritten.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// The reader has read up to `to`. Returns whether the writer waits for room and is to be woken.
    #[inline]
    pub(crate) fn release(&self, to: u64, tail: &Tail) -> bool {
        self.position.store(to, Ordering::Release);
        fence(Ordering::SeqCst);
        tail.wants_room.load(Ordering::Relaxed) != 0
    }
}

impl Asleep {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The reader is about to sleep. It looks at every ring once more after this.
    pub(crate) fn announce(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The reader looks by itself from now on.
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
