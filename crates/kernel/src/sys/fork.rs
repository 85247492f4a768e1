//! Tells a forked child that the objects are its parent's: a command on an inherited descriptor would change
//! or destroy what the parent uses. It is recognised by a page that the kernel gives it as zeros
//! (`MADV_WIPEONFORK`), which costs posting and polling a load instead of a system call.

#![allow(unsafe_code, reason = "a mapping of its own")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::error::refused;

/// Written to the page by the process that owns it.
const OWNER: u32 = 0x6f77_6e72;

/// A mark that a fork wipes.
#[derive(Debug)]
pub(crate) struct ForkGuard {
    page: NonNull<AtomicU32>,
    length: usize,
}

// SAFETY: the page is only accessed through an atomic, and unmapped only by `Drop`.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Marks this process as the owner.
    ///
    /// # Errors
    /// The kernel refuses the page.
    pub(crate) fn new() -> Result<Self> {
        let length = rustix::param::page_size();
        let (rights, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
        let page = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), length, rights, kind) }
            .map_err(|errno| refused(Step::OpenDevice, "mmap", errno))?;
        let page = NonNull::new(page.cast::<AtomicU32>())
            .ok_or_else(|| refused(Step::OpenDevice, "mmap", Errno::NOMEM))?;
        let guard = Self { page, length };
        // The provider needs a kernel that is newer than the advice (Linux 4.14).
        // SAFETY: the range is the mapping just made.
        unsafe { mm::madvise(page.as_ptr().cast(), length, Advice::LinuxWipeOnFork) }
            .map_err(|errno| refused(Step::OpenDevice, "madvise", errno))?;
        guard.mark().store(OWNER, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this process is the one that made the mark.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.mark().load(Ordering::Relaxed) == OWNER
    }

    /// Fails in a process that was forked off since.
    #[inline]
    pub(crate) fn check(&self, step: Step) -> Result<()> {
        if self.is_owner() {
            return Ok(());
        }
        let after_fork = "use in a process forked after the kernel provider was opened";
        Err(Error::new(step, Cause::Unsupported(after_fork)))
    }

    fn mark(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped for as long as `self` lives, aligned, and initialized (the
        // kernel hands out zeros).
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the mapping is this guard's own and no reference to it outlives `self`.
        // Unmapping a mapping of one's own cannot fail.
        let _ = unsafe { mm::munmap(self.page.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_accepted_and_a_forked_child_is_refused() {
        let guard = ForkGuard::new().unwrap();
        guard.check(Step::PollCq).unwrap();
        // SAFETY: the child only reads an atomic and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let is_owner = guard.is_owner();
            // SAFETY: ends the child at once, running nothing of the parent's.
            unsafe { libc::_exit(i32::from(is_owner)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw the parent's mark");
        guard.check(Step::PollCq).unwrap();
    }
}
