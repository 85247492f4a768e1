//! `rpoll` and `rselect`: sockets of this library and other descriptors together.

#![allow(unsafe_code, reason = "descriptor sets of C programs")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, c_short, fd_set, pollfd, timeval};
use portolan::stream::Ready;
use rustix::io::Errno;

use super::settings::settings;
use super::socket::{Rsocket, State};
use super::table::look_up;
use super::watchers;
use crate::guard::{Result, last_errno};

/// The part of `events` that a socket is ready for. After this call, the descriptor of [`watched`] becomes readable
/// when the socket is ready for more.
pub(super) fn look(socket: &Rsocket, events: c_short) -> c_short {
    let mut state = socket.state.lock();
    if matches!(&*state, State::Connecting(_)) {
        match socket.go_on(&mut state) {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(_) => return POLLERR | events & (POLLIN | POLLOUT),
        }
    }
    match &*state {
        State::Connected(stream) => {
            let ready = stream.ready_or_watch(events & POLLIN != 0, events & POLLOUT != 0);
            found(ready) & (events & (POLLIN | POLLOUT) | POLLHUP | POLLERR)
        }
        State::Listening(listener) => {
            let mut fd = pollfd {
                fd: listener.as_fd().as_raw_fd(),
                events,
                revents: 0,
            };
            // SAFETY: one descriptor, which the listener keeps open.
            unsafe { libc::poll(&mut fd, 1, 0) };
            fd.revents & (events | POLLERR | POLLHUP)
        }
        State::Datagram(datagrams) => match datagrams.is_readable() {
            Ok(is_readable) => {
                let readable = if is_readable { POLLIN } else { 0 };
                (readable | POLLOUT) & events
            }
            Err(_) => POLLERR,
        },
        State::Refused { .. } => POLLERR | events & (POLLIN | POLLOUT),
        State::Fresh(_) | State::Connecting(_) => 0,
        // Closed by another thread during the call.
        State::Changing => libc::POLLNVAL,
    }
}

fn found(ready: Ready) -> c_short {
    [
        (ready.readable, POLLIN),
        (ready.writable, POLLOUT),
        (ready.hung_up, POLLHUP),
        (ready.failed, POLLERR),
    ]
    .into_iter()
    .filter(|(is_so, _)| *is_so)
    .fold(0, |found, (_, event)| found | event)
}

/// From now on, calls on the socket that take what its descriptor signals tell the instances.
pub(super) fn tell_instances(socket: &Rsocket) {
    if let State::Connected(stream) = &*socket.state.lock() {
        let number = socket.number;
        stream.on_found(move |ready| {
            watchers::tell(number, u32::from(found(ready).cast_unsigned()));
        });
    }
}

/// The descriptor to wait for until the socket's state may have changed.
pub(super) fn watched(socket: &Rsocket) -> RawFd {
    match &*socket.state.lock() {
        State::Connected(stream) => stream.as_fd().as_raw_fd(),
        State::Listening(listener) => listener.as_fd().as_raw_fd(),
        State::Connecting(connecting) => connecting.as_fd().as_raw_fd(),
        State::Datagram(datagrams) => datagrams.as_fd().as_raw_fd(),
        State::Fresh(_) | State::Refused { .. } | State::Changing => socket.number,
    }
}

/// The time left for a call.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    until: Option<Instant>,
    looks_until: Instant,
}

impl Patience {
    /// Converts a timeout in milliseconds, as for poll(2).
    pub(super) fn new(timeout_ms: c_int) -> Self {
        let now = Instant::now();
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self {
            until: timeout.map(|timeout| now + timeout),
            looks_until: now + settings().polling_time,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether to keep polling.
    pub(super) fn looks(&self) -> bool {
        Instant::now() < self.looks_until
    }

    /// The next sleep in milliseconds, rounded up.
    pub(super) fn sleep_ms(&self) -> c_int {
        let longest = settings().wake_up_interval;
        let left = self.until.map_or(longest, |until| {
            until.saturating_duration_since(Instant::now())
        });
        let left = left.min(longest);
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    }
}

/// `rpoll`: returns the number of descriptors with events.
///
/// # Errors
/// `EINTR` and others of poll(2).
pub(crate) fn poll(fds: &mut [pollfd], timeout_ms: c_int) -> Result<c_int> {
    let sockets: Vec<Option<Arc<Rsocket>>> = fds.iter().map(|fd| look_up(fd.fd)).collect();
    if sockets.iter().all(Option::is_none) {
        return wait_for(fds, timeout_ms);
    }
    let patience = Patience::new(timeout_ms);
    loop {
        let count = look_at_all(fds, &sockets)?;
        if count > 0 || patience.is_over() {
            return Ok(count);
        }
        if patience.looks() {
            std::hint::spin_loop();
            continue;
        }
        let mut raw: Vec<pollfd> = fds.to_vec();
        for (fd, socket) in raw.iter_mut().zip(&sockets) {
            if let Some(socket) = socket {
                (fd.fd, fd.events) = (watched(socket), POLLIN);
            }
        }
        wait_for(&mut raw, patience.sleep_ms())?;
    }
}

/// Checks every descriptor once.
fn look_at_all(fds: &mut [pollfd], sockets: &[Option<Arc<Rsocket>>]) -> Result<c_int> {
    let mut count = 0;
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        match socket {
            Some(socket) => fd.revents = look(socket, fd.events),
            None => {
                wait_for(std::slice::from_mut(fd), 0)?;
            }
        }
        count += c_int::from(fd.revents != 0);
    }
    Ok(count)
}

fn wait_for(fds: &mut [pollfd], timeout_ms: c_int) -> Result<c_int> {
    // SAFETY: the slice has that many descriptors.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    match count {
        0.. => Ok(count),
        _ => Err(last_errno()),
    }
}

/// `rselect`: returns the number of set bits.
///
/// # Errors
/// `EINVAL` for an invalid number of descriptors; as for [`poll`].
///
/// # Safety
/// The sets and the timeout are null or valid as in select(2).
pub(crate) unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: *const timeval,
) -> Result<c_int> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller promises the timeout.
    let timeout_ms = match unsafe { timeout.as_ref() } {
        None => -1,
        Some(timeout) if timeout.tv_sec < 0 || timeout.tv_usec < 0 => return Err(Errno::INVAL),
        Some(timeout) => {
            let ms = timeout
                .tv_sec
                .saturating_mul(1000)
                .saturating_add((timeout.tv_usec + 999) / 1000);
            c_int::try_from(ms).unwrap_or(c_int::MAX)
        }
    };
    let [read, write, except] = sets;
    // SAFETY: the caller promises the sets, and the number is below their size.
    let has = |set: *mut fd_set, fd: c_int| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
    let fds = (0..count).filter_map(|fd| {
        let reads = if has(read, fd) { POLLIN } else { 0 };
        let writes = if has(write, fd) { POLLOUT } else { 0 };
        let is_wanted = reads | writes != 0 || has(except, fd);
        is_wanted.then_some(pollfd {
            fd,
            events: reads | writes,
            revents: 0,
        })
    });
    let mut fds: Vec<_> = fds.collect();
    let wanted: Vec<[bool; 3]> = fds
        .iter()
        .map(|fd| sets.map(|set| has(set, fd.fd)))
        .collect();
    poll(&mut fds, timeout_ms)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno::BADF);
    }
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        // SAFETY: as above.
        unsafe { libc::FD_ZERO(set) };
    }
    let mut bits = 0;
    for (fd, wanted) in fds.iter().zip(wanted) {
        let events = [
            POLLIN | POLLHUP | POLLERR,
            POLLOUT | POLLERR,
            POLLERR | POLLHUP,
        ];
        for ((set, wanted), events) in sets.into_iter().zip(wanted).zip(events) {
            if wanted && fd.revents & events != 0 {
                // SAFETY: as above.
                unsafe { libc::FD_SET(fd.fd, set) };
                bits += 1;
            }
        }
    }
    Ok(bits)
}
