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
    /// As `Wait`, until this datagram socket has a datagram.
    WaitForDatagram(RawFd),
    /// Nothing was available, but something may be now.
    Again,
}

/// Whether the call has slept before this attempt. The program may have destroyed the object meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Slept(pub(crate) bool);

impl Attempt {
    /// # Errors
    /// `EAGAIN` if the program has set `O_NONBLOCK`.
    pub(crate) fn wait(fd: BorrowedFd<'_>) -> Result<Self> {
        must_block(fd)?;
        Ok(Self::Wait(fd.as_raw_fd()))
    }
}

/// Repeats attempts until one takes something. Returns 0, or -1 with `errno` set. The thread may be cancelled between
/// attempts, outside the frames that catch panics: an attempt must leave nothing to drop.
pub(crate) fn until(attempt: impl Fn(Slept) -> Result<Attempt> + Copy) -> c_int {
    let mut slept = Slept(false);
    // As in read(2), also if the call need not sleep.
    raw::may_be_cancelled();
    loop {
        let waited = match caught(|| attempt(slept)) {
            Ok(Attempt::Done) => return 0,
            Ok(Attempt::Again) => Ok(()),
            Ok(Attempt::Wait(fd)) => {
                slept = Slept(true);
                raw::readable(fd)
            }
            Ok(Attempt::WaitForDatagram(fd)) => {
                slept = Slept(true);
                raw::has_datagram(fd)
            }
            Err(errno) => Err(errno),
        };
        if let Err(errno) = waited {
            return failed(errno);
        }
    }
}

/// # Errors
/// `EAGAIN` if the program has set `O_NONBLOCK`.
pub(crate) fn must_block(fd: BorrowedFd<'_>) -> Result<()> {
    match fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
        true => Err(Errno::AGAIN),
        false => Ok(()),
    }
}
