//! Threads that take no signals.

#![allow(unsafe_code, reason = "the signal mask is libc's")]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `f` with every signal blocked in this thread. A thread spawned by `f` inherits the mask,
/// so that the program's handlers never run on it.
pub(crate) fn with_all_blocked<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the mask is the one that pthread_sigmask stored for this thread.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
        }
    }

    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initializes `all`; pthread_sigmask reads it and, as SIG_SETMASK is a valid
    // operation, cannot fail and initializes `before`.
    let _restore = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Restore(before.assume_init())
    };
    f()
}
