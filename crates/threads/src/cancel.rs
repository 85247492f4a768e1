//! Defers cancellation (pthread_cancel(3)) of C threads while they are inside the library.

#![allow(unsafe_code, reason = "pthread_setcancelstate is only in libc")]

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

// The libc crate lacks it.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Runs `body` with cancellation of this thread disabled. A cancellation request in the meantime
/// takes effect at the next cancellation point after the call.
///
/// Many libc calls are cancellation points (pthreads(7)), including sendmsg(2) and recvmmsg(2). A
/// thread cancelled in one would unwind through frames that hold locks and through the frame that
/// catches panics, which aborts the process.
pub fn uncancelled<T>(body: impl FnOnce() -> T) -> T {
    // Miri does not support cancellation.
    let _held = (!cfg!(miri)).then(Held::new);
    body()
}

/// Disables cancellation of this thread while it lives; not `Send`.
struct Held {
    before: c_int,
    of_thread: PhantomData<*const ()>,
}

impl Held {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: `before` has room for the state. The call cannot fail, because the state is
        // valid.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        let of_thread = PhantomData;
        Self { before, of_thread }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: `before` is a valid state, and a null pointer means that the old state is not
        // stored.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        Held::new().before
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no cancelling")]
    fn the_cancel_state_is_restored_after_the_body_and_after_a_panic() {
        let before = state();
        assert_ne!(before, DISABLE);
        assert_eq!(uncancelled(|| uncancelled(state) + state()), 2 * DISABLE);
        assert_eq!(state(), before);
        let panicked = std::panic::catch_unwind(|| uncancelled(|| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(state(), before);
    }
}
