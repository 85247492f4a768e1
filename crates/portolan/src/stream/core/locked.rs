//! The locked state of a stream.

use std::ops::{Deref, DerefMut};
use std::task::Waker;
use std::time::Duration;

use portolan_threads::lock::{Condvar, Mutex, MutexGuard};

use super::State;

/// Wakes tasks after it has released the lock: a waker may do anything, even drop a stream.
pub(super) struct Locked<'a> {
    /// `None` only while this is moved or dropped.
    guard: Option<MutexGuard<'a, State>>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(state: &'a Mutex<State>) -> Self {
        Self {
            guard: Some(state.lock()),
        }
    }

    /// Waits for `advanced`, at most for `timeout`. Returns at once if tasks must be woken first.
    pub(super) fn wait(
        mut self,
        state: &'a Mutex<State>,
        advanced: &Condvar,
        timeout: Option<Duration>,
    ) -> Self {
        if self.woken.iter().any(Option::is_some) {
            drop(self);
            return Self::new(state);
        }
        self.guard = self.guard.take().map(|guard| match timeout {
            None => advanced.wait(guard),
            Some(timeout) => advanced.wait_timeout(guard, timeout).0,
        });
        self
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        match &self.guard {
            Some(guard) => guard,
            None => unreachable!("the lock is held"),
        }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!("the lock is held"),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let woken = match &mut self.guard {
            Some(guard) => std::mem::take(&mut guard.woken),
            None => [None, None],
        };
        self.guard = None;
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}
