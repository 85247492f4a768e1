//! A biased mutual exclusion lock.

#![allow(unsafe_code, reason = "the value of a lock")]

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::panicking;

use super::bias::{Bias, Owner};
use super::is_possible;
use super::run::Run;
use super::word::Word;
use crate::this_thread::this_thread;

/// A biased mutual exclusion lock. `MENDS`: it notes whether a thread panicked while holding it.
pub struct Mutex<T, const MENDS: bool = false> {
    bias: Bias,
    /// Locked by each thread but the owner.
    word: Word,
    /// Used only if it is noted.
    is_poisoned: AtomicBool,
    /// Under `word`.
    run: UnsafeCell<Run>,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time gets at what it contains.
unsafe impl<T: Send, const MENDS: bool> Sync for Mutex<T, MENDS> {}

/// A biased lock whose value is repaired after a panic: see [`MendingMutex::lock_or_mend`].
pub type MendingMutex<T> = Mutex<T, true>;

impl<T> Mutex<T> {
    /// Creates a lock around `value`.
    pub fn new(value: T) -> Self {
        Self::around(value)
    }
}

impl<T> MendingMutex<T> {
    /// Creates a lock around `value`.
    pub fn mending(value: T) -> Self {
        Self::around(value)
    }

    /// Like [`lock`](Self::lock); if a thread panicked while holding the lock, runs `mend` first, once.
    #[inline(always)]
    pub fn lock_or_mend(&self, mend: impl FnOnce(&mut T)) -> MutexGuard<'_, T, true> {
        let guard = self.lock();
        match self.is_poisoned.load(Ordering::Relaxed) {
            true => Self::mend(guard, mend),
            false => guard,
        }
    }

    /// The guard is passed by value, so that it need not be in memory for this.
    #[cold]
    fn mend<'a>(
        mut guard: MutexGuard<'a, T, true>,
        mend: impl FnOnce(&mut T),
    ) -> MutexGuard<'a, T, true> {
        guard.lock.is_poisoned.store(false, Ordering::Relaxed);
        mend(&mut guard);
        guard
    }
}

impl<T, const MENDS: bool> Mutex<T, MENDS> {
    fn around(value: T) -> Self {
        Self {
            bias: Bias::default(),
            word: Word::new(),
            is_poisoned: AtomicBool::new(false),
            run: UnsafeCell::new(Run::new()),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks; blocks until the lock is free.
    ///
    /// # Panics
    /// If this thread holds it as its owner. Otherwise a second call of the same thread blocks for ever.
    #[inline(always)]
    pub fn lock(&self) -> MutexGuard<'_, T, MENDS> {
        let thread = this_thread();
        let held = match self.bias.enter(thread) {
            Some(owner) => owner,
            None => self.lock_word(thread),
        };
        self.guard(held)
    }

    /// Locks unless a thread holds the lock. If two threads try at the same time, both may fail.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, MENDS>> {
        let thread = this_thread();
        let held = match self.bias.enter(thread) {
            Some(owner) => owner,
            None => self.try_lock_word(thread)?,
        };
        Some(self.guard(held))
    }

    /// Returns how it is held, as the following.
    #[inline(never)]
    fn lock_word(&self, thread: usize) -> usize {
        self.word.lock();
        match self.bias.owner(thread) {
            Owner::Nobody => self.count(thread),
            owner => self.lock_owned(thread, owner),
        }
    }

    /// The word is locked, but there is an owner.
    #[cold]
    fn lock_owned(&self, thread: usize, owner: Owner) -> usize {
        if owner == Owner::Another {
            self.bias.revoke();
            self.end_run();
            return self.count(thread);
        }
        if self.bias.has_entered() {
            self.word.unlock();
            panic!("a thread locks what it holds");
        }
        self.bias.give_up();
        LOCKED_TO_OWN
    }

    fn try_lock_word(&self, thread: usize) -> Option<usize> {
        if self.bias.has_entered() || !self.word.try_lock() {
            return None;
        }
        let owner = self.bias.owner(thread);
        let is_free = match owner {
            Owner::Nobody => return Some(self.count(thread)),
            // Another thread tried to take the ownership away when this one found that it has not.
            Owner::Itself => !self.bias.has_entered(),
            Owner::Another => self.bias.try_revoke(),
        };
        if !is_free {
            self.word.unlock();
            return None;
        }
        if owner == Owner::Itself {
            self.bias.give_up();
            return Some(LOCKED_TO_OWN);
        }
        self.end_run();
        Some(self.count(thread))
    }

    /// The word is locked, and there is no owner.
    #[inline]
    fn count(&self, thread: usize) -> usize {
        // SAFETY: this thread has locked the word.
        let run = unsafe { &mut *self.run.get() };
        match run.count(thread) && is_possible() {
            true => LOCKED_TO_OWN,
            false => LOCKED,
        }
    }

    #[inline(never)]
    fn unlock_word(&self, held: usize) {
        if held == LOCKED_TO_OWN {
            self.bias.give_to(this_thread());
        }
        self.word.unlock();
    }

    #[cfg(test)]
    pub(super) fn belongs_to_this_thread(&self) -> bool {
        self.bias.owner(this_thread()) == Owner::Itself
    }

    fn end_run(&self) {
        // SAFETY: this thread has locked the word.
        unsafe { (*self.run.get()).end() };
    }

    #[inline(always)]
    fn guard(&self, held: usize) -> MutexGuard<'_, T, MENDS> {
        let panics = if MENDS && panicking() {
            WAS_PANICKING
        } else {
            0
        };
        MutexGuard {
            lock: self,
            held: held | panics,
            not_send: PhantomData,
        }
    }
}

impl<T, const MENDS: bool> fmt::Debug for Mutex<T, MENDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

/// A locked [`Mutex`].
#[must_use]
#[derive(Debug)]
pub struct MutexGuard<'a, T, const MENDS: bool = false> {
    lock: &'a Mutex<T, MENDS>,
    /// The owner as which the thread has entered, or one of the following, with [`WAS_PANICKING`]. One word, so that a guard
    /// is passed in two registers.
    held: usize,
    /// The thread that has locked it unlocks it.
    not_send: PhantomData<*const ()>,
}

// SAFETY: other threads get only references to the value from it.
unsafe impl<T: Sync, const MENDS: bool> Sync for MutexGuard<'_, T, MENDS> {}

/// Its word is locked, and it has no owner.
const LOCKED: usize = 1;
/// The same. The thread becomes the owner when it unlocks.
const LOCKED_TO_OWN: usize = 2;
/// The thread was panicking already when it locked.
const WAS_PANICKING: usize = 4;
/// The numbers of owners have no bit of the flag, and are at least this.
const OWNED_MIN: usize = 16;

impl<T, const MENDS: bool> Deref for MutexGuard<'_, T, MENDS> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const MENDS: bool> DerefMut for MutexGuard<'_, T, MENDS> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock, and this is its only guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const MENDS: bool> MutexGuard<'_, T, MENDS> {
    /// As [`drop`], but always inlined.
    #[inline(always)]
    pub fn unlock(self) {
        ManuallyDrop::new(self).release();
    }

    #[inline(always)]
    fn release(&self) {
        if MENDS && panicking() && self.held & WAS_PANICKING == 0 {
            self.lock.is_poisoned.store(true, Ordering::Relaxed);
        }
        let held = match MENDS {
            true => self.held & !WAS_PANICKING,
            false => self.held,
        };
        if held >= OWNED_MIN {
            self.lock.bias.leave(held);
        } else {
            self.lock.unlock_word(held);
        }
    }
}

impl<T, const MENDS: bool> Drop for MutexGuard<'_, T, MENDS> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release();
    }
}
