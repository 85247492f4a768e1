//! Waiting for a descriptor as read(2) would: the program's flag says whether, and its signal handlers for how long.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::guard::Result;

/// Waits until the descriptor is readable.
///
/// # Errors
/// `EAGAIN` if the program has set `O_NONBLOCK`; `EINTR` if a signal came whose handler wants calls interrupted.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> Result<()> {
    if fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
        return Err(Errno::AGAIN);
    }
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None) {
            Err(Errno::INTR) if !interrupts() => {}
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(()),
        }
    }
}

/// Whether the program has a handler that does not want interrupted calls to go on (`SA_RESTART`). read(2) would
/// have known which of them ran; poll(2) never goes on.
fn interrupts() -> bool {
    let signals = 1..=libc::SIGRTMAX();
    signals.into_iter().any(|signal| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: asks for the action of a signal; all zeros is one, should there be no such signal.
        let action = unsafe {
            libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        let is_caught = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        is_caught && action.sa_flags & libc::SA_RESTART == 0
    })
}
