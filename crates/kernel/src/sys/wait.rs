//! Waiting in a program's call. A thread that waits there may be cancelled (pthread_cancel(3)): it then unwinds as by a
//! panic that nobody may catch, through frames that must have nothing to drop.

#![allow(
    unsafe_code,
    reason = "poll(2) of libc is where a thread may be cancelled; that of rustix is not"
)]

use std::ffi::{c_int, c_ulong};
use std::os::fd::RawFd;

use rustix::io::Errno;

use crate::sys::ucma::last_errno;

// libc's crate says of it that it does not unwind.
unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// Waits until the descriptor is readable, for ever. The thread may be cancelled here: nothing that is to be dropped
/// may live in the frames above, and nothing may catch panics there.
///
/// # Errors
/// `EINTR` if a signal came and the program has a handler that wants calls interrupted.
pub fn readable(fd: RawFd) -> Result<(), Errno> {
    loop {
        let mut of = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which outlives the call.
        if unsafe { poll(&raw mut of, 1, -1) } >= 0 {
            return Ok(());
        }
        match last_errno() {
            Errno::INTR if !interrupts() => {}
            errno => return Err(errno),
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
