//! How the progress thread and others hand over to each other without losing a wake-up.
//!
//! Both protocols are Dekker's: each side publishes what it does, then, after a fence, reads what the other
//! published. In any order, at least one of the two sees the other. A model checker tries every order
//! (`tests/poll_handoff.rs`).

use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence, fence_after_exchange};

/// The time until which the progress thread sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// In nanoseconds; 0 while the thread is awake.
    until_ns: AtomicU64,
}

impl Sleep {
    pub(crate) fn new() -> Self {
        Self {
            until_ns: AtomicU64::new(0),
        }
    }

    /// Announces a sleep until `until_ns`. After this call, the thread checks once more everything that could shorten
    /// the sleep.
    pub(crate) fn announce(&self, until_ns: u64) {
        self.until_ns.store(until_ns.max(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread is awake and will check everything.
    pub(crate) fn end(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Whether the thread must be woken for something that is due at `deadline_ns`. The caller has published that
    /// before, by an exchange or a sequentially consistent store.
    #[inline]
    pub(crate) fn misses(&self, deadline_ns: u64) -> bool {
        fence_after_exchange();
        deadline_ns < self.until_ns.load(Ordering::Relaxed)
    }
}

/// Selects who reads the sockets: polling threads, or the progress thread, which then watches the sockets.
///
/// If each packet that a poller reads woke the progress thread, the two would contend for the processor and the lock.
/// So a poller stores the time of its visit. The progress thread sees it the next time it is awake, stops watching,
/// and checks at intervals. When no thread has polled for a while, it watches again. A poller that is about to sleep
/// makes it watch at once.
///
/// The argument `watch` of the methods starts or stops watching. It is called under a lock of this type.
#[derive(Debug)]
pub(crate) struct PollHandoff {
    /// The time of the last visit of a poller, nanoseconds; 0 if it said that it leaves.
    polled_ns: AtomicU64,
    /// Whether the progress thread watches. Written under the lock, read without.
    watching: AtomicBool,
    changing: Mutex<()>,
    /// How long a visit counts, nanoseconds.
    stay_ns: u64,
}

impl PollHandoff {
    /// Starts with the progress thread watching. A visit of a poller counts for `stay_ns`.
    pub(crate) fn new(stay_ns: u64) -> Self {
        Self {
            polled_ns: AtomicU64::new(0),
            watching: AtomicBool::new(true),
            changing: Mutex::new(()),
            stay_ns,
        }
    }

    /// Called by a thread that polls: it will read the sockets.
    #[inline]
    pub(crate) fn poller_is_here(&self, now_ns: u64) {
        self.polled_ns.store(now_ns.max(1), Ordering::Relaxed);
    }

    /// Called by a polling thread that is about to sleep. After this call the sockets are watched, or the progress
    /// thread is about to check them.
    #[inline]
    pub(crate) fn poller_leaves(&self, watch: impl Fn(bool)) {
        self.polled_ns.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.set(true, watch);
    }

    /// Stops watching if a poller reads the sockets, otherwise watches. Returns whether a poller does. Only the
    /// progress thread calls this.
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

    /// Makes the progress thread watch, even while others poll.
    pub(crate) fn watch_beside_pollers(&self, watch: impl Fn(bool)) {
        self.set(true, watch);
    }

    /// Whether an active poller has not visited for `away_ns`: it does something else, or is stopped.
    pub(crate) fn is_poller_away(&self, now_ns: u64, away_ns: u64) -> bool {
        let polled_ns = self.polled_ns.load(Ordering::Relaxed);
        polled_ns != 0 && now_ns.saturating_sub(polled_ns) >= away_ns
    }

    /// Whether a poller is active.
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
