//! Locks that stay usable after a panic.
//!
//! The standard library's locks refuse all threads after a thread panicked while holding one. With
//! these the next thread gets the lock and continues. If a panic can leave the value inconsistent,
//! use [`Mutex::lock_or_mend`] to repair it.

use std::sync::{self, PoisonError, TryLockError, WaitTimeoutResult};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Unwraps the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks; blocks until the lock is free.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`lock`](Self::lock); if a thread panicked while holding the lock, runs `mend` first,
    /// once.
    #[inline]
    pub fn lock_or_mend(&self, mend: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poisoned| {
            let mut guard = poisoned.into_inner();
            self.0.clear_poison();
            mend(&mut guard);
            guard
        })
    }

    /// Locks unless another thread holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value; `&mut self` proves that no other thread can reach it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates a lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading; blocks while a writer holds the lock.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for reading unless a writer holds the lock.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks for writing; blocks while readers or a writer hold the lock.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Creates a condition variable.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Unlocks the mutex, waits for a notification and locks it again. Wakeups may be spurious.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`wait`](Self::wait), for a limited time.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let waited = self.0.wait_timeout(guard, timeout);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn broken() -> Mutex<u32> {
        let lock = Mutex::new(1);
        let held = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("a panic requested by the test");
        }));
        assert!(held.is_err());
        lock
    }

    #[test]
    fn the_next_thread_after_a_panic_gets_the_lock() {
        let lock = broken();
        *lock.lock() += 1;
        assert_eq!(lock.try_lock().as_deref(), Some(&2));
        assert!(lock.0.is_poisoned());
    }

    #[test]
    fn state_left_by_a_panic_is_repaired_once() {
        let lock = broken();
        assert_eq!(*lock.lock_or_mend(|value| *value = 7), 7);
        assert!(!lock.0.is_poisoned());
        assert_eq!(*lock.lock_or_mend(|value| *value = 8), 7);
    }

    #[test]
    fn a_lock_that_is_held_is_busy() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
