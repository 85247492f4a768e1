//! Which threads are in a call of this library that may hold its locks.
//!
//! A signal handler that interrupts such a call may end the process, or leave the call by longjmp(3).

use std::cell::Cell;

/// A call of this library that a thread is in, except while it [sleeps](asleep).
pub(crate) struct Inside(());

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

impl Inside {
    pub(crate) fn enter() -> Self {
        CALLS.set(CALLS.get().wrapping_add(1));
        Self(())
    }

    /// Whether this thread is in a call, or has left one by longjmp(3): it may hold locks that it would wait for.
    pub(crate) fn is_entered() -> bool {
        CALLS.get() != 0
    }

    /// As [`Inside::is_entered`], for a caller that is in a call itself.
    pub(crate) fn is_nested() -> bool {
        CALLS.get() > 1
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get().wrapping_sub(1));
    }
}

/// Runs what sleeps, or runs the program's signal handlers, while no lock is held.
pub(crate) fn asleep<T>(sleep: impl FnOnce() -> T) -> T {
    let calls = CALLS.replace(0);
    let result = sleep();
    CALLS.set(calls);
    result
}
