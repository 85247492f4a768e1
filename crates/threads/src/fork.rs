//! Detects that this process is a forked child, which must not use its parent's resources.
//!
//! A child of `fork` inherits memory and descriptors, but no threads. If parent and child used one device or one
//! connection, each would take half of the other's traffic. The guard is a page that the kernel zeroes in the child
//! (`MADV_WIPEONFORK`, Linux 4.14). Reading it costs one load; asking for the process id would cost a system call.

#![allow(unsafe_code, reason = "a mapping of its own")]

use std::io::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Written to the page by the process that owns it.
const OWNER: u32 = 0x6f77_6e72;

/// A mark that `fork` clears in the child.
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<AtomicU32>,
    length: usize,
    /// Compared instead if the kernel cannot wipe the page.
    pid: Option<u32>,
}

// SAFETY: the page is only accessed through an atomic, and unmapped only by `Drop`.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Marks this process as the owner.
    ///
    /// # Errors
    /// If the system cannot map a page.
    pub fn new() -> Result<Self> {
        // SAFETY: sysconf only returns a number.
        let length = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let length = usize::try_from(length).map_err(|_| Error::last_os_error())?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, kind, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let page = NonNull::new(mapped.cast::<AtomicU32>()).ok_or_else(Error::last_os_error)?;
        // SAFETY: the range is the mapping just made.
        let wiped = unsafe { libc::madvise(mapped, length, libc::MADV_WIPEONFORK) };
        let pid = (wiped != 0).then(std::process::id);
        let guard = Self { page, length, pid };
        guard.mark().store(OWNER, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this process created the guard.
    #[inline]
    pub fn is_owner(&self) -> bool {
        let is_marked = self.mark().load(Ordering::Relaxed) == OWNER;
        is_marked && self.pid.is_none_or(|pid| pid == std::process::id())
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
        let _ = unsafe { libc::munmap(self.page.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_accepted_and_a_forked_child_is_refused() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_owner());
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
        assert!(guard.is_owner());
    }
}
