//! Detects a forked child: a command on an inherited descriptor would change or destroy the parent's objects.

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::fork;

/// A mark that holds in the process that made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard(fork::ForkGuard);

impl ForkGuard {
    /// Marks this process as the owner.
    pub(crate) fn new() -> Self {
        Self(fork::ForkGuard::new())
    }

    /// Whether this process created the mark.
    #[inline]
    pub(crate) fn is_owner(self) -> bool {
        self.0.is_owner()
    }

    /// Fails in a forked child.
    #[inline]
    pub(crate) fn check(self, step: Step) -> Result<()> {
        if self.is_owner() {
            return Ok(());
        }
        let after_fork = "use in a process forked after the kernel provider was opened";
        Err(Error::new(step, Cause::Unsupported(after_fork)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "forks")]

    use super::*;

    #[test]
    fn the_owner_is_accepted_and_a_forked_child_is_refused() {
        let guard = ForkGuard::new();
        guard.check(Step::PollCq).unwrap();
        // SAFETY: the child only reads an atomic and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let is_owner = guard.is_owner();
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(is_owner)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child created above; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw the parent's mark");
        guard.check(Step::PollCq).unwrap();
    }
}
