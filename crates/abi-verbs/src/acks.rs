//! Events that a program must acknowledge: the object of an event is not destroyed before that.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{pthread_cond_t, pthread_mutex_t};

/// Number of reported events.
#[derive(Debug, Default)]
pub(crate) struct Reported(AtomicU32);

impl Reported {
    /// Counts one more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// The fields of a C structure that acknowledge its events.
#[derive(Clone, Copy)]
pub(crate) struct Acks {
    pub(crate) mutex: *mut pthread_mutex_t,
    pub(crate) cond: *mut pthread_cond_t,
    pub(crate) completed: *mut u32,
}

/// A mutex and a condition, initialized like `PTHREAD_…_INITIALIZER`.
pub(crate) const FRESH: (pthread_mutex_t, pthread_cond_t) = (
    libc::PTHREAD_MUTEX_INITIALIZER,
    libc::PTHREAD_COND_INITIALIZER,
);

impl Acks {
    /// Acknowledges `count` events.
    ///
    /// # Safety
    /// The fields belong to a living object.
    pub(crate) unsafe fn add(self, count: u32) {
        // SAFETY: the three pointers are fields of one living object, and its mutex is initialized.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(count);
            libc::pthread_cond_signal(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits, without a limit, until all reported events are acknowledged, as libibverbs requires.
    ///
    /// # Safety
    /// As for [`Acks::add`]; no more events are reported.
    pub(crate) unsafe fn wait(self, reported: &Reported) {
        let reported = reported.0.load(Ordering::Acquire);
        // SAFETY: as in `add`; the count is read under the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while self.completed.read() != reported {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}
