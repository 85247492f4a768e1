//! How a ring's writer and reader learn of each other's progress, and when to wake the reader.
//!
//! Positions count bytes since the ring was created. Each record begins with its mark, which the writer writes last. So
//! the line of memory that the reader polls is one that it needs anyway. The reader shows its own position, `head`.
//!
//! A reader first sets its word in `asleep`, then checks the next mark once more, then sleeps. The writer first writes
//! the mark, then checks whether the reader had read everything and is asleep. In any order, one of the two sees the
//! other (Dekker's algorithm). The same applies in the other direction to a writer that waits for room. A model checker
//! tries every order (`tests/shm_cursor.rs`).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The first word of a record, written by the writer: whether the record is there.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mark(AtomicU32);

/// Written by the writer: whether it waits for room.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RoomWanted(AtomicU32);

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

impl Mark {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The mark. If it is that of a record at this position, the reader may read the record.
    #[inline]
    pub(crate) fn read(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Writes a mark that the reader cannot reach before the next [`publish`](Self::publish).
    #[inline]
    pub(crate) fn prepare(&self, mark: u32) {
        self.0.store(mark, Ordering::Relaxed);
    }

    /// Makes records visible: this is the mark of the first one, at the position `from`. Returns who must be woken at
    /// the reading end. `fence` executes a sequentially consistent fence; the caller may have an exchange that is one.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        mark: u32,
        from: u64,
        head: &Head,
        asleep: &Asleep,
        fence: impl FnOnce(),
    ) -> Sleepers {
        self.0.store(mark, Ordering::Release);
        fence();
        let sleepers = asleep.sleepers();
        match sleepers.any() && head.position.load(Ordering::Relaxed) == from {
            true => sleepers,
            false => Sleepers::default(),
        }
    }
}

impl RoomWanted {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The writer waits for room. It must check once more after this.
    pub(crate) fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The writer does not wait for room any more.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
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

    /// The reader has read up to `to`, not far beyond its last [`release`](Self::release). So the writer does not wait for
    /// this room, or the ring has more to read. Who sleeps after this has to execute a fence before it looks at the marks.
    #[inline]
    pub(crate) fn show(&self, to: u64) {
        self.position.store(to, Ordering::Release);
    }

    /// The reader has read up to `to`. Returns whether the writer waits for room and must be woken.
    #[inline]
    pub(crate) fn release(&self, to: u64, wanted: &RoomWanted) -> bool {
        self.position.store(to, Ordering::Release);
        fence(Ordering::SeqCst);
        wanted.0.load(Ordering::Relaxed) != 0
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
