//! Tells a forked child that the device is not its own.
//!
//! A child of `fork` inherits the descriptors and the memory but not the progress thread; two
//! processes reading one queue pair's socket would each get half of its packets. So the child is
//! refused. It is recognised by a page that the kernel gives it as zeros (`MADV_WIPEONFORK`,
//! Linux 4.14), which costs a load where asking for the process id would cost a system call.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Written to the page by the process that owns it.
const OWNER: u32 = 0x6f77_6e72;

/// A mark that a fork wipes.
#[derive(Debug)]
pub(super) struct ForkGuard {
    page: NonNull<AtomicU32>,
    length: usize,
    /// Asked where the kernel cannot wipe the page.
    pid: Option<u32>,
}

// SAFETY: the page is only accessed through an atomic, and unmapped only by `Drop`.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Marks this process as the owner.
    pub(super) fn new() -> Result<Self> {
        let length = rustix::param::page_size();
        // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
        let page = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| os_error("mmap", errno))?;
        let page = NonNull::new(page.cast::<AtomicU32>())
            .ok_or_else(|| os_error("mmap", rustix::io::Errno::NOMEM))?;
        // SAFETY: the range is the mapping just made.
        let wiped = unsafe { mm::madvise(page.as_ptr().cast(), length, Advice::LinuxWipeOnFork) };
        let pid = wiped.is_err().then(std::process::id);
        let guard = Self { page, length, pid };
        guard.mark().store(OWNER, Ordering::Relaxed);
        Ok(guard)
    }

    /// Fails in a process that was forked off since.
    #[inline]
    pub(super) fn check(&self, step: Step) -> Result<()> {
        let wiped = self.mark().load(Ordering::Relaxed) != OWNER;
        if wiped || self.pid.is_some_and(|pid| pid != std::process::id()) {
            return Err(Error::new(step, Cause::Unsupported(AFTER_FORK)));
        }
        Ok(())
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

const AFTER_FORK: &str = "use of a software device in a process forked after it was opened";

fn os_error(call: &'static str, errno: rustix::io::Errno) -> Error {
    Error::new(
        Step::OpenDevice,
        Cause::Os {
            call,
            errno: errno.raw_os_error(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_accepted_and_a_forked_child_is_refused() {
        let guard = ForkGuard::new().unwrap();
        guard.check(Step::PollCq).unwrap();
        // SAFETY: the child only reads an atomic and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let refused = guard.mark().load(Ordering::Relaxed) != OWNER;
            // SAFETY: ends the child at once, running nothing of the parent's.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw the parent's mark");
        guard.check(Step::PollCq).unwrap();
    }
}
