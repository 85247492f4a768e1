//! How the progress thread and others hand over to each other without losing a wake-up.
//!
//! The protocols are Dekker's: each side publishes what it does, then, after a fence, reads what the other
//! published. In any order, at least one of the two sees the other. A model checker tries every order
//! (`tests/poll_handoff.rs`).

use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, fence_after_exchange,
};

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

/// A change of what the progress thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Whether the writers of rings wake it.
    Rings(bool),
    /// Whether the sockets do.
    Sockets(bool),
}

/// Selects who reads the sockets: polling threads, or the progress thread, which then watches the sockets.
///
/// If each packet that a poller reads woke the progress thread, the two would contend for the processor and the lock.
/// So a poller stores the time of its visit. The progress thread sees it the next time it is awake, stops watching,
/// and checks at intervals. When no thread has polled for a while, it watches again. A poller that is about to sleep
/// makes it watch at once.
///
/// A thread of the program that sleeps for a stream may wait for the sockets itself, so that one thread is woken for a
/// packet instead of two. Meanwhile the progress thread does not watch them. When that thread is awake, it probably comes
/// back before the next packet if there is much traffic, and the progress thread would be woken for nothing. Then it
/// only checks at intervals. Otherwise it watches at once.
///
/// The argument `watch` of the methods changes what the progress thread waits for. It is called under a lock of this
/// type.
#[derive(Debug)]
pub(crate) struct PollHandoff {
    /// The time of the last visit of a poller, nanoseconds; 0 if it said that it leaves.
    polled_ns: AtomicU64,
    /// Whether the progress thread watches. Written under the lock, read without, as the following.
    watching: AtomicBool,
    /// Whether the sockets wake it.
    has_sockets: AtomicBool,
    /// The thread of the program that waits for the sockets; 0 for none.
    sleeper: AtomicUsize,
    /// When such a thread was last awake and expected to come back, nanoseconds.
    awake_ns: AtomicU64,
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
            has_sockets: AtomicBool::new(true),
            sleeper: AtomicUsize::new(0),
            awake_ns: AtomicU64::new(0),
            changing: Mutex::new(()),
            stay_ns,
        }
    }

    /// Called by a thread that polls: it will read the sockets.
    #[inline]
    pub(crate) fn poller_is_here(&self, now_ns: u64) {
        self.polled_ns.store(now_ns.max(1), Ordering::Relaxed);
    }

    /// Called by a polling thread that is about to sleep. After this call the sockets are watched, or a thread of the
    /// program waits for them, or the progress thread is about to check them, or checks them at intervals because it
    /// [expects a sleeper](Self::expects_sleeper).
    #[inline]
    pub(crate) fn poller_leaves(&self, now_ns: u64, watch: impl Fn(Watch)) {
        self.polled_ns.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.set(true, !self.expects_sleeper(now_ns), watch);
    }

    /// Stops watching if a poller reads the sockets, otherwise watches. Returns whether a poller does. Only the
    /// progress thread calls this.
    pub(crate) fn yield_to_pollers(&self, now_ns: u64, watch: impl Fn(Watch)) -> bool {
        if self.is_polled(now_ns) {
            self.set(false, true, &watch);
            fence(Ordering::SeqCst);
            if self.is_polled(now_ns) {
                return true;
            }
        }
        self.set(true, !self.expects_sleeper(now_ns), watch);
        false
    }

    /// Makes the progress thread watch, even while others poll.
    pub(crate) fn watch_beside_pollers(&self, watch: impl Fn(Watch)) {
        self.set(true, true, watch);
    }

    /// The calling thread is about to wait for the sockets. False if another one does.
    pub(crate) fn sleeper_takes(&self, thread: usize, watch: impl Fn(Watch)) -> bool {
        let _guard = self.changing.lock();
        match self.sleeper.load(Ordering::Relaxed) {
            0 => {}
            // A signal handler may have interrupted its wait.
            sleeper => return sleeper == thread,
        }
        self.sleeper.store(thread, Ordering::Relaxed);
        self.apply(watch);
        fence(Ordering::SeqCst);
        true
    }

    /// The thread that waited for the sockets is awake, and has read them. If it is expected back since `back_ns`, the
    /// progress thread checks the sockets at intervals: wake it if it sleeps for long.
    pub(crate) fn sleeper_returns(
        &self,
        thread: usize,
        back_ns: Option<u64>,
        watch: impl Fn(Watch),
    ) {
        let _guard = self.changing.lock();
        if self.sleeper.load(Ordering::Relaxed) != thread {
            // The progress thread stood in for it, and another one may wait since.
            return;
        }
        self.awake_ns.store(back_ns.unwrap_or(0), Ordering::Relaxed);
        self.sleeper.store(0, Ordering::Relaxed);
        match back_ns {
            Some(_) => fence(Ordering::SeqCst),
            None => self.apply(watch),
        }
    }

    /// The thread that waited for the sockets does not come, or need not wait any more.
    pub(crate) fn sleeper_is_gone(&self, watch: impl Fn(Watch)) {
        let _guard = self.changing.lock();
        self.awake_ns.store(0, Ordering::Relaxed);
        self.sleeper.store(0, Ordering::Relaxed);
        self.apply(watch);
    }

    /// Calls `change` if the progress thread watches. It goes on watching meanwhile.
    pub(crate) fn if_watching(&self, change: impl FnOnce()) {
        let _guard = self.changing.lock();
        if self.watching.load(Ordering::Relaxed) {
            change();
        }
    }

    /// Whether a thread that waited for the sockets was awake lately and is expected back.
    pub(crate) fn expects_sleeper(&self, now_ns: u64) -> bool {
        let awake_ns = self.awake_ns.load(Ordering::Relaxed);
        awake_ns != 0 && now_ns.saturating_sub(awake_ns) < self.stay_ns
    }

    /// Whether the sockets are left to such a thread, although none waits for them now.
    pub(crate) fn is_sleeper_away(&self) -> bool {
        !self.has_sockets.load(Ordering::Relaxed)
            && !self.has_sleeper()
            && self.watching.load(Ordering::Relaxed)
    }

    /// Whether a thread of the program waits for the sockets.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper.load(Ordering::Relaxed) != 0
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

    fn set(&self, watching: bool, with_sockets: bool, watch: impl Fn(Watch)) {
        let is_as_wanted = self.watching.load(Ordering::Relaxed) == watching;
        if is_as_wanted && !(with_sockets && self.is_sleeper_away()) {
            return;
        }
        let _guard = self.changing.lock();
        if self.watching.load(Ordering::Relaxed) != watching {
            watch(Watch::Rings(watching));
            self.watching.store(watching, Ordering::Relaxed);
        }
        if with_sockets {
            self.apply(watch);
        }
    }

    /// Adds the sockets or removes them, under the lock.
    fn apply(&self, watch: impl Fn(Watch)) {
        let wanted = self.watching.load(Ordering::Relaxed) && !self.has_sleeper();
        if self.has_sockets.load(Ordering::Relaxed) != wanted {
            watch(Watch::Sockets(wanted));
            self.has_sockets.store(wanted, Ordering::Relaxed);
        }
    }
}
