//! Waits for a descriptor like read(2): the program's `O_NONBLOCK` and its signal handlers decide when a wait ends.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use portolan_kernel::raw;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::guard::{Result, caught, failed};

/// The result of an attempt to take something.
#[derive(Clone, Copy)]
pub(crate) enum Attempt {
    /// Something was taken.
    Done,
    /// Nothing is available until this descriptor is readable.
    Wait(RawFd),
}

impl Attempt {
    /// # Errors
    /// `EAGAIN` if the program has set `O_NONBLOCK`.
    pub(crate) fn wait(fd: BorrowedFd<'_>) -> Result<Self> {
        match fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
            true => Err(Errno::AGAIN),
            false => Ok(Self::Wait(fd.as_raw_fd())),
        }
    }
}

/// Repeats attempts until one takes something. Returns 0, or -1 with `errno` set. The thread may be cancelled between
/// attempts, outside the frames that catch panics: an attempt must leave nothing to drop.
pub(crate) fn until(attempt: impl Fn() -> Result<Attempt> + Copy) -> c_int {
    loop {
        let waited = match caught(attempt) {
            Ok(Attempt::Done) => return 0,
            Ok(Attempt::Wait(fd)) => raw::readable(fd),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = waited {
            return failed(errno);
        }
    }
}
