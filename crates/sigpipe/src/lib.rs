//! The disposition of SIGPIPE with which this process started.
//!
//! Rust's start code ignores the signal, and [`Command`] gives programs its default action. So a program would get
//! the default action also if this process was started with the signal ignored, as systemd's services are.
//!
//! This crate is for executables only: in a library, it would run code in each program that loads the library.

#![allow(unsafe_code, reason = "the dispositions of signals are libc's")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// libc calls it before `main`, and thus before Rust's start code.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action, sigaction(2) changes nothing and only writes to `action`.
    let status = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    if status == 0 {
        // SAFETY: sigaction(2) has succeeded, so it has initialized `action`.
        let action = unsafe { action.assume_init() };
        WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Gives the command's program the disposition of SIGPIPE with which this process started: ignored or the default
/// action (execve(2)).
pub fn pass_on(command: &mut Command) {
    if !WAS_IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let ignore = || {
        // SAFETY: no handler is installed, so no code of this process depends on the signal. signal(2) is
        // async-signal-safe, as a function between fork and exec must be.
        match unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: `ignore` only calls signal(2) and reads errno. It takes no locks and does not allocate.
    unsafe { command.pre_exec(ignore) };
}
