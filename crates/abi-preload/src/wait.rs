//! Blocking in the kernel, with TCP's behaviour on signals.

#![allow(unsafe_code, reason = "calls of libc")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLOUT, pollfd, sigset_t, timespec};
use portolan::Stream;
use portolan::stream::{Direction, Ready, SocketSleep};
use portolan_abi_layout::guard::{Result, last_errno};
use rustix::io::Errno;

use crate::farewell::Farewell;
use crate::inside::asleep;
use crate::real;
use crate::socket::Socket;

/// Converts a timeout for C.
pub(crate) fn timespec_of(left: Duration) -> timespec {
    timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    }
}

/// What a signal does to a waiting call (signal(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// The call continues, if all handlers have `SA_RESTART`.
    Restarts,
    /// The call ends with `EINTR`, because the socket has a timeout.
    Ends,
}

impl OnSignal {
    /// For a call that ends at `until` because of `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    pub(crate) fn of(until: Option<Instant>) -> Self {
        match until {
            Some(_) => Self::Ends,
            None => Self::Restarts,
        }
    }
}

/// Waits until a descriptor is readable or `left` has passed.
///
/// # Errors
/// `EINTR` after a signal, as `on_signal` says.
pub(crate) fn wait_readable(
    fd: BorrowedFd<'_>,
    left: Option<Duration>,
    on_signal: OnSignal,
) -> Result<()> {
    wait_for(&mut [readable(fd)], left, on_signal)
}

/// A wait until a descriptor is readable.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> pollfd {
    pollfd {
        fd: fd.as_raw_fd(),
        events: POLLIN,
        revents: 0,
    }
}

/// Waits until one of several descriptors is ready or `left` has passed.
///
/// # Errors
/// As for [`wait_readable`].
pub(crate) fn wait_for(
    fds: &mut [pollfd],
    left: Option<Duration>,
    on_signal: OnSignal,
) -> Result<()> {
    // SAFETY: there is no mask.
    match unsafe { ask_kernel(fds, left, std::ptr::null()) } {
        Err(Errno::INTR) if on_signal == OnSignal::Restarts && all_restart() => Ok(()),
        asked => asked,
    }
}

/// `ppoll` of the kernel.
///
/// # Errors
/// As for ppoll(2).
///
/// # Safety
/// The mask is null or valid.
pub(crate) unsafe fn ask_kernel(
    fds: &mut [pollfd],
    sleep: Option<Duration>,
    mask: *const sigset_t,
) -> Result<()> {
    let sleep = sleep.map(timespec_of);
    let timeout = sleep.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice gives pointer and count; the timeout is null or valid; the caller vouches for the mask.
    let found = asleep(|| unsafe {
        real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, mask)
    });
    match found {
        0.. => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Whether all signal handlers have `SA_RESTART`. A receive from TCP would then restart; poll(2) never does.
fn all_restart() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: zeros are a valid sigaction; the kernel fills it.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: it only reads a signal's action, into a valid place.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
        let is_caught = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !known || !is_caught || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Ready,
    /// The stream was handed over: the kernel carries the data.
    HandedOver,
}

/// Waits until a direction of a connected socket may be ready.
///
/// # Errors
/// `EAGAIN` after `until`; `EINTR`.
pub(crate) fn wait_direction(
    socket: &Socket,
    stream: &Stream,
    direction: Direction,
    until: Option<Instant>,
) -> Result<Woken> {
    let mut polling = None;
    loop {
        if stream.ready().is(direction) {
            return Ok(Woken::Ready);
        }
        let polling = polling.get_or_insert_with(|| socket.spin().start());
        if !socket.spin().goes_on(polling) {
            break;
        }
        std::hint::spin_loop();
    }
    let directions = [Direction::Read, Direction::Write].map(|each| each == direction);
    loop {
        let farewell = Farewell::hear();
        let (wait, ready) = Waits::begin(stream, directions);
        if ready.is(direction) {
            return Ok(Woken::Ready);
        }
        if socket.stream().is_none() {
            return Ok(Woken::HandedOver);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Errno::AGAIN);
        }
        let descriptors = stream.descriptors();
        let left = descriptors.at_most(farewell.at_most(left));
        let sleep = wait.sleep_at_sockets();
        let sockets = sleep.iter().flat_map(SocketSleep::sockets);
        let all = descriptors.all().chain(sockets);
        let all = all.chain(farewell.descriptor());
        let mut fds: Vec<_> = all.map(readable).collect();
        wait_for(&mut fds, left, OnSignal::of(until))?;
    }
}

/// A thread waits for a stream by its descriptor, until this is dropped.
pub(crate) struct Waits {
    stream: Stream,
    directions: [bool; 2],
    seen: Ready,
}

impl Waits {
    /// Begins a wait for these directions, and for an end of the stream. Returns also what is ready already.
    pub(crate) fn begin(stream: &Stream, directions: [bool; 2]) -> (Self, Ready) {
        let seen = stream.begin_wait(directions);
        let stream = stream.clone();
        let wait = Self {
            stream,
            directions,
            seen,
        };
        (wait, seen)
    }

    /// Called before a sleep: what else to wait for.
    pub(crate) fn sleep_at_sockets(&self) -> Option<SocketSleep<'_>> {
        self.stream.sleep_at_sockets()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.stream.end_wait(self.directions, self.seen);
    }
}

/// Waits until the kernel's socket is ready in one direction.
///
/// # Errors
/// `EINTR`.
pub(crate) fn wait_kernel(
    fd: c_int,
    direction: Direction,
    left: Option<Duration>,
    on_signal: OnSignal,
) -> Result<()> {
    let events = match direction {
        Direction::Read => POLLIN,
        Direction::Write => POLLOUT,
    };
    let mut fds = [pollfd {
        fd,
        events,
        revents: 0,
    }];
    wait_for(&mut fds, left, on_signal)
}
