//! Which threads are in a call of this library.

use std::cell::Cell;

/// A call of this library that a thread is in. A signal handler may interrupt it, and may leave it by longjmp(3).
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
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get().wrapping_sub(1));
    }
}
