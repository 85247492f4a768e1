//! The signal mask of a thread, futexes, and barriers that all threads of the process execute.

#![allow(unsafe_code, reason = "system calls")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Commands of membarrier(2), which libc lacks (`linux/membarrier.h`).
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
/// See [`MEMBARRIER_CMD_PRIVATE_EXPEDITED`].
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Allows [`membarrier`]. Returns false if the kernel lacks it or forbids it.
pub(crate) fn register_membarrier() -> bool {
    call_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Makes every other thread of the process execute a full memory barrier before this returns. Returns false if it did not.
pub(crate) fn membarrier() -> bool {
    call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn call_membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sleeps while the word has this value, until it is woken or the time is over. May return early.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: word and timeout outlive the call, which only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &timeout) };
}

/// Wakes one of the threads that wait for the word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the call only uses the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}

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
