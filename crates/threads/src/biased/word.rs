//! An ordinary lock of one word.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sys;

const FREE: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and threads may sleep.
const AWAITED: u32 = 2;

/// Looks before a thread sleeps.
const LOOKS: u32 = 100;
/// The longest sleep. A limit only: who unlocks wakes a sleeper.
const SLEEP_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Word(AtomicU32);

impl Word {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        let (locked, not) = (Ordering::Acquire, Ordering::Relaxed);
        self.0.compare_exchange(FREE, LOCKED, locked, not).is_ok()
    }

    #[inline]
    pub(super) fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.0.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
            std::hint::spin_loop();
        }
        // Others may sleep, too, so it stays awaited.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.0, AWAITED, SLEEP_MAX);
        }
    }

    #[inline]
    pub(super) fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            sys::futex_wake(&self.0);
        }
    }
}
