//! A lock for many readers or one writer, biased towards one of the readers.

#![allow(unsafe_code, reason = "the value of a lock")]

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::bias::{Bias, Owner};
use super::is_possible;
use super::run::{START, next_length};
use crate::lock;
use crate::this_thread::this_thread;

/// A lock for many readers or one writer, biased towards one of the readers. Only a writer takes the ownership away.
pub struct RwLock<T> {
    bias: Bias,
    /// The reader of the last acquisition, and how many more make it the owner. Not exact: several may count at once.
    last: AtomicUsize,
    left: AtomicU32,
    /// Locked by each thread but the owner. Its value is the length of a run.
    word: lock::RwLock<u32>,
    value: UnsafeCell<T>,
}

// SAFETY: many threads get at the value at the same time, or one changes it.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    /// Creates a lock around `value`.
    pub fn new(value: T) -> Self {
        Self {
            bias: Bias::default(),
            last: AtomicUsize::new(0),
            left: AtomicU32::new(START),
            word: lock::RwLock::new(START),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks for reading; blocks while a writer holds the lock.
    #[inline(always)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let thread = this_thread();
        let held = match self.bias.enter_again(thread) {
            Some(owner) => Reading::Owned(owner),
            None => Reading::Shared(ManuallyDrop::new(self.read_shared(thread))),
        };
        RwLockReadGuard { lock: self, held }
    }

    #[inline(never)]
    fn read_shared(&self, thread: usize) -> lock::RwLockReadGuard<'_, u32> {
        let wanted = self.word.read();
        if self.bias.owner(thread) == Owner::Nobody {
            if self.last.load(Ordering::Relaxed) != thread {
                self.last.store(thread, Ordering::Relaxed);
                self.left.store(*wanted, Ordering::Relaxed);
            }
            let left = self.left.load(Ordering::Relaxed).saturating_sub(1);
            self.left.store(left, Ordering::Relaxed);
            if left == 0 && is_possible() {
                self.bias.give_to(thread);
            }
        }
        wanted
    }

    #[cfg(test)]
    pub(super) fn belongs_to_this_thread(&self) -> bool {
        self.bias.owner(this_thread()) == Owner::Itself
    }

    /// Locks for writing; blocks while readers or a writer hold the lock.
    ///
    /// # Panics
    /// If this thread reads it as its owner. Otherwise a thread that reads it blocks for ever.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let mut wanted = self.word.write();
        let thread = this_thread();
        let owner = self.bias.owner(thread);
        match owner {
            Owner::Nobody => {}
            Owner::Itself => {
                // The word is unlocked by its guard if this panics.
                assert!(!self.bias.has_entered(), "a thread locks what it holds");
                self.bias.give_up();
            }
            Owner::Another => {
                self.bias.revoke();
                *wanted = next_length(*wanted);
                self.last.store(0, Ordering::Relaxed);
            }
        }
        RwLockWriteGuard {
            lock: self,
            owner: (owner == Owner::Itself).then_some(thread),
            _exclusive: wanted,
        }
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

/// An [`RwLock`] that is locked for reading.
#[must_use]
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    held: Reading<'a>,
}

/// How a thread holds a lock for reading.
#[derive(Debug)]
enum Reading<'a> {
    /// By its ownership, as this owner.
    Owned(usize),
    /// Its word is locked.
    Shared(ManuallyDrop<lock::RwLockReadGuard<'a, u32>>),
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock for reading.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> RwLockReadGuard<'_, T> {
    /// As [`drop`], but always inlined.
    #[inline(always)]
    pub fn unlock(self) {
        ManuallyDrop::new(self).release();
    }

    /// Called once.
    #[inline(always)]
    fn release(&mut self) {
        match &mut self.held {
            Reading::Owned(owner) => self.lock.bias.leave_again(*owner),
            // SAFETY: it is not used any more.
            Reading::Shared(word) => unsafe { unlock_shared(word) },
        }
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release();
    }
}

/// Not inlined: an owner's unlocking is so short that all its callers contain it.
///
/// # Safety
/// The guard is not used any more.
#[inline(never)]
unsafe fn unlock_shared(word: &mut ManuallyDrop<lock::RwLockReadGuard<'_, u32>>) {
    // SAFETY: the caller's promise.
    unsafe { ManuallyDrop::drop(word) };
}

/// An [`RwLock`] that is locked for writing.
#[must_use]
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    lock: &'a RwLock<T>,
    /// This thread, if it is the owner again afterwards.
    owner: Option<usize>,
    _exclusive: lock::RwLockWriteGuard<'a, u32>,
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock for writing.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock for writing, and this is its only guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(thread) = self.owner {
            self.lock.bias.give_to(thread);
        }
    }
}
