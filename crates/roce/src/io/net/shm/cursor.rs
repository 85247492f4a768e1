//! The positions of a ring's writer and reader, and when to wake the reader.
//!
//! Positions count bytes since the ring was created. The writer moves `tail`, the reader `head`. A reader first sets its
//! word in `asleep`, then checks the ring once more, then sleeps. The writer first moves `tail`, then checks whether the
//! reader had read everything and is asleep. In any order, one of the two sees the other (Dekker's algorithm). The
//! same applies in the other direction to a writer that waits for room. A model checker tries every order
//! (`tests/shm_cursor.rs`).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Written by the writer: its position, and whether it waits for room.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Tail {
    position: AtomicU64,
    wants_room: AtomicU32,
}

/// Written by the reader: its position in one ring.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Head {
    position: AtomicU64,
}

/// Written by the reading process: who sleeps and must be woken for any of its rings.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Asleep {
    thread: AtomicU32,
    waiter: AtomicU32,
}

/// Whom to wake at the reading end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sleepers {
    /// The progress thread.
    pub(crate) thread: bool,
    /// The thread of the program that waits for the rings itself.
    pub(crate) waiter: bool,
}

impl Sleepers {
    /// Whether anyone must be woken.
    #[inline]
    pub(crate) fn any(self) -> bool {
        self.thread || self.waiter
    }

    /// Those of both.
    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            thread: self.thread || other.thread,
            waiter: self.waiter || other.waiter,
        }
    }
}

impl Tail {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self {
            position: AtomicU64::new(0),
            wants_room: AtomicU32::new(0),
        }
    }

    /// The writer's position. The reader may read everything before it.
    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// The writer has written the bytes from `from` to `to`. Returns who must be woken at the reading end.
    #[inline]
    pub(crate) fn publish(&self, from: u64, to: u64, head: &Head, asleep: &Asleep) -> Sleepers {
        self.position.store(to, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleepers = asleep.sleepers();
        match sleepers.any() && head.position.load(Ordering::Relaxed) == from {
            true => sleepers,
            false => Sleepers::default(),
        }
    }

    /// The writer waits for room. It must check once more after this.
    pub(crate) fn want_room(&self) {
        self.wants_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The writer does not wait for room any more.
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

    /// The reader's position. The writer may overwrite everything before it.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    /// The reader has read up to `to`. Returns whether the writer waits for room and must be woken.
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
        Self {
            thread: AtomicU32::new(0),
            waiter: AtomicU32::new(0),
        }
    }

    /// The progress thread is about to sleep. It must check every ring once more after this.
    pub(crate) fn announce(&self) {
        self.thread.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The progress thread polls the rings, or leaves them to others.
    pub(crate) fn end(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }

    /// A thread that waits for the rings itself is about to sleep. It must check every ring once more after this.
    pub(crate) fn announce_waiter(&self) {
        self.waiter.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// A thread reads the rings, so the waiter need not be woken.
    #[inline]
    pub(crate) fn end_waiter(&self) {
        // Most polls need not fetch the line from the writers.
        if self.waiter.load(Ordering::Relaxed) != 0 {
            self.waiter.store(0, Ordering::Relaxed);
        }
    }

    /// Who sleeps.
    #[inline]
    pub(crate) fn sleepers(&self) -> Sleepers {
        Sleepers {
            thread: self.thread.load(Ordering::Relaxed) != 0,
            waiter: self.waiter.load(Ordering::Relaxed) != 0,
        }
    }
}
