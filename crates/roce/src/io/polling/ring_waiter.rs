//! Whether a thread of the program waits for the rings itself, so that no other thread has to wake it.
//!
//! The thread, or an event loop, has a descriptor that other processes ring ([`waiter_bell`]), and drives the device
//! when it is woken. The progress thread leaves the rings to it, as to a poller. If it does not come, the progress thread
//! reads them at its next check for pollers, and is woken for everything that follows until the thread waits again.
//!
//! A model checker tries every order of the steps of a thread that falls asleep and one that takes over
//! (`tests/ring_waiter.rs`).
//!
//! [`waiter_bell`]: crate::io::net::shm::waiter_bell

use super::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// After how many events that were there when the program called, a waiter that was missed is expected again. Each miss
/// doubles this number: a program that waits by poll(2) always finds its events there, and a message waits each time that the
/// program is expected to sleep in a call.
const FOUND_MIN: u32 = 8;
const FOUND_MAX: u32 = 4096;

#[derive(Debug)]
pub(crate) struct RingWaiter {
    is_taken: AtomicBool,
    /// It waits, or is about to. Its bell may have been rung.
    rests: AtomicBool,
    /// The program waits in a call for each event. It has rested or polled there, or found its events there, and was not
    /// missed since.
    is_expected: AtomicBool,
    /// Events that were there when the program called, while the waiter is not expected.
    found: AtomicU32,
    /// The number of these after which it is expected again.
    found_needed: AtomicU32,
    /// Where threads of the program may wait: channels, and completion queues that call.
    places: AtomicUsize,
}

impl RingWaiter {
    pub(crate) fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            is_expected: AtomicBool::new(false),
            found: AtomicU32::new(0),
            found_needed: AtomicU32::new(FOUND_MIN),
            places: AtomicUsize::new(0),
        }
    }

    /// The caller waits from now on. `false` if another one does.
    pub(crate) fn take(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::AcqRel)
    }

    /// Undoes [`take`](Self::take).
    pub(crate) fn release(&self) {
        self.rests.store(false, Ordering::SeqCst);
        self.is_expected.store(false, Ordering::Relaxed);
        self.found.store(0, Ordering::Relaxed);
        self.found_needed.store(FOUND_MIN, Ordering::Relaxed);
        self.is_taken.store(false, Ordering::Release);
    }

    /// The waiter is about to sleep.
    pub(crate) fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
    }

    pub(crate) fn rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }

    /// The waiter rests in a call for an event, or has polled for it there, and is expected to make the next such call.
    /// Returns whether it still rests: if not, somebody has taken over and wakes it by other means.
    pub(crate) fn expect(&self) -> bool {
        let was_expected = self.is_expected.swap(true, Ordering::Relaxed);
        let rests = self.rests();
        if was_expected && rests {
            self.found_needed.store(FOUND_MIN, Ordering::Relaxed);
        }
        rests
    }

    /// The waiter was away for long.
    pub(crate) fn miss(&self) {
        if !self.rests() {
            self.was_missed();
        }
    }

    fn was_missed(&self) {
        if self.is_expected.swap(false, Ordering::Relaxed) {
            let needed = self.found_needed.load(Ordering::Relaxed);
            let doubled = needed.saturating_mul(2).min(FOUND_MAX);
            self.found_needed.store(doubled, Ordering::Relaxed);
            self.found.store(0, Ordering::Relaxed);
        }
    }

    /// An event was there when the program called: the progress thread was faster. If that happens again and again, the
    /// program wakes that thread each time, although it could wait itself.
    pub(crate) fn find(&self) {
        if self.is_expected() {
            return;
        }
        let found = self.found.load(Ordering::Relaxed) + 1;
        let is_enough = found >= self.found_needed.load(Ordering::Relaxed);
        self.found
            .store(if is_enough { 0 } else { found }, Ordering::Relaxed);
        if is_enough {
            self.is_expected.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_expected(&self) -> bool {
        self.is_expected.load(Ordering::Relaxed)
    }

    /// The waiter has not come in time, or sleeps elsewhere. Returns whether it rested. Then another thread that takes over
    /// rings the bell last, because the waiter may sleep there.
    pub(crate) fn take_over(&self) -> bool {
        let rested = self.rests.swap(false, Ordering::SeqCst);
        if rested {
            self.is_expected.store(false, Ordering::Relaxed);
        } else {
            self.was_missed();
        }
        rested
    }

    pub(crate) fn add_place(&self) {
        self.places.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_place(&self) {
        self.places.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no other thread may wait than those of the caller's place.
    pub(crate) fn has_one_place(&self) -> bool {
        self.places.load(Ordering::Relaxed) == 1
    }

    /// The waiter is awake. Returns whether it rested.
    pub(crate) fn rise(&self) -> bool {
        self.rests.load(Ordering::Relaxed) && self.rests.swap(false, Ordering::SeqCst)
    }
}
