//! A forked child process, for tests of the state after fork(2).

#![allow(unsafe_code, reason = "fork(2), waitpid(2) and _exit(2)")]

/// Runs `f` in a child and returns its exit status.
pub(crate) fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: glibc's fork leaves its allocator usable in the child of a threaded process, and the
    // child touches no lock that another thread of the parent may hold, then leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let status = f();
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: `child` is this process's child, and `status` outlives the call.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            assert!(
                libc::WIFEXITED(status),
                "the child ended by itself: {status:#x}"
            );
            libc::WEXITSTATUS(status)
        }
    }
}
