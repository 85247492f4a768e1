//! How the progress thread and others hand over to each other, without missing anything.
//!
//! Both protocols here are Dekker's: each side first says what it does, then, after a fence, looks
//! at what the other said. Whatever the order, at least one of the two sees the other. A model
//! checker goes through every order (`tests/poll_handoff.rs`).

use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// Until when the progress thread sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// In nanoseconds; 0 while the thread is awake.
    until_ns: AtomicU64,
}

impl Sleep {
    /// Awake.
    pub(crate) fn new() -> Self {
        Self {
            until_ns: AtomicU64::new(0),
        }
    }

    /// The thread means to sleep until then. Whatever could shorten the sleep it looks at once more
    /// after this.
    pub(crate) fn announce(&self, until_ns: u64) {
        self.until_ns.store(until_ns.max(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread is awake and will look at everything.
    pub(crate) fn end(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Whether the thread has to be woken for something due at `deadline_ns`. The caller has made
    /// that something visible before.
    pub(crate) fn misses(&self, deadline_ns: u64) -> bool {
        fence(Ordering::SeqCst);
        deadline_ns < self.until_ns.load(Ordering::Relaxed)
    }
}

/// Who reads the sockets: threads that poll, or the progress thread, which then watches them.
///
/// If the progress thread were woken by each packet that a poller reads, the two would fight over
/// processor and lock. So a poller leaves the time of its visit; the progress thread, next time it
/// is awake, sees it, stops watching, and looks again every so often. When no thread has polled for a
/// while it watches again. A poller that is about to sleep has it watch at once.
///
/// `watch` in the methods starts or stops the watching; it is called under a lock of this type.
#[derive(Debug)]
pub(crate) struct PollHandoff {
    /// When a poller was last here, nanoseconds; 0 if it said that it leaves.
    polled_ns: AtomicU64,
    /// Whether the progress thread watches; changed under the lock, read without.
    watching: AtomicBool,
    changing: Mutex<()>,
    /// How long a visit counts.
    stay_ns: u64,
}

impl PollHandoff {
    /// The progress thread watches. Visits of pollers count for `stay_ns`.
    pub(crate) fn new(stay_ns: u64) -> Self {
        Self {
            polled_ns: AtomicU64::new(0),
            watching: AtomicBool::new(true),
            changing: Mutex::new(()),
            stay_ns,
        }
    }

    /// A thread polls: it will read the sockets.
    #[inline]
    pub(crate) fn poller_is_here(&self, now_ns: u64) {
        self.polled_ns.store(now_ns.max(1), Ordering::Relaxed);
    }

    /// A thread that polled is about to sleep: when this returns the sockets are watched, or the
    /// progress thread is about to look.
    #[inline]
    pub(crate) fn poller_leaves(&self, watch: impl Fn(bool)) {
        self.polled_ns.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.set(true, watch);
    }

    /// Stops watching if a poller reads the sockets, else watches; whether a poller does. By the
    /// progress thread alone.
    pub(crate) fn yield_to_pollers(&self, now_ns: u64, watch: impl Fn(bool)) -> bool {
        if self.is_polled(now_ns) {
            self.set(false, &watch);
            fence(Ordering::SeqCst);
            if self.is_polled(now_ns) {
                return true;
            }
        }
        self.set(true, watch);
        false
    }

    /// The progress thread watches, even while others poll.
    pub(crate) fn watch_beside_pollers(&self, watch: impl Fn(bool)) {
        self.set(true, watch);
    }

    /// Whether a poller that counts as here was not seen for so long: it does something else, or was stopped.
    pub(crate) fn is_poller_away(&self, now_ns: u64, away_ns: u64) -> bool {
        let polled_ns = self.polled_ns.load(Ordering::Relaxed);
        polled_ns != 0 && now_ns.saturating_sub(polled_ns) >= away_ns
    }

    /// Whether a poller counts as here.
    pub(crate) fn is_polled(&self, now_ns: u64) -> bool {
        let polled_ns = self.polled_ns.load(Ordering::Relaxed);
        polled_ns != 0 && now_ns.saturating_sub(polled_ns) < self.stay_ns
    }

    fn set(&self, watching: bool, watch: impl Fn(bool)) {
        if self.watching.load(Ordering::Relaxed) == watching {
            return;
        }
        let _guard = self.changing.lock();
        if self.watching.load(Ordering::Relaxed) != watching {
            watch(watching);
            self.watching.store(watching, Ordering::Relaxed);
        }
    }
}
