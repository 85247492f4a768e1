//! The signal mask of a thread.

#![allow(unsafe_code, reason = "the signal mask is libc's")]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `f` with every signal blocked in this thread. A thread spawned by `f` inherits the mask,
/// so that the program's handlers never run on it.
pub fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: pthread_sigmask stored this mask for this thread.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that this thread blocks, in proc(5)'s format.
    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:"));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    }

    #[test]
    fn a_thread_started_within_blocks_all_signals_and_the_starters_mask_is_restored() {
        let before = blocked();
        let started = with_signals_blocked(|| std::thread::spawn(blocked));
        let of_thread = u64::from_str_radix(&started.join().unwrap(), 16).unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM] {
            assert_ne!(of_thread & (1 << (signal - 1)), 0, "signal {signal}");
        }
        assert_eq!(blocked(), before);
        assert_ne!(u64::from_str_radix(&before, 16).unwrap(), of_thread);
    }
}
