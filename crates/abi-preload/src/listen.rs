//! Listening and accepting: one socket serves both rsockets and TCP.

#![allow(unsafe_code, reason = "calls of libc with places of the program's")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libc::{
    POLLIN, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, c_short, pollfd, sockaddr, socklen_t,
};
use portolan::stream::Direction;
use portolan::{ListenOptions, Listener, Stream, StreamListener};
use portolan_abi_layout::guard::{Result, last_errno, set_errno};
use rustix::io::Errno;
use socket2::SockAddr;

use crate::backlog::{Backlog, Newcomer};
use crate::inside::{Inside, asleep};
use crate::settings::settings;
use crate::sharing::{Guest, Host};
use crate::socket::{Kind, Listening, Phase, Socket, enter};
use crate::table::Table;
use crate::wait::{OnSignal, wait_for, wait_kernel};
use crate::{background, inheritance, names, options, real, report};

/// Interval between attempts to listen on a port that another process holds.
const RETRY: Duration = Duration::from_secs(1);

/// `listen`. A bound socket listens for rsockets first: a peer that found only the kernel's listener would use TCP. An
/// unbound one gets its port from the kernel, and no peer knows it yet.
pub(crate) fn listen(socket: &Socket, number: c_int, length: c_int) -> c_int {
    let is_bound = names::local(number).is_some_and(|local| local.port() != 0);
    let is_first = is_bound && start(socket, number, length);
    // SAFETY: listen(2) takes no pointers.
    let answer = unsafe { real::listen(number, length) };
    match answer {
        0 if !is_bound => {
            start(socket, number, length);
        }
        0 => {}
        _ if is_first => {
            let errno = last_errno();
            socket.set_kind(Kind::Fresh);
            *socket.phase.lock() = Phase::Nothing;
            socket.tell_change();
            set_errno(errno);
        }
        _ => {}
    }
    answer
}

/// Starts to listen for rsockets. Returns false if the settings exclude the port, if the program has chosen a device, or if the
/// socket is in use already.
fn start(socket: &Socket, number: c_int, length: c_int) -> bool {
    let is_wanted = names::local(number).is_some_and(|local| settings().takes(&local));
    let is_wanted = is_wanted && !inheritance::has_own_route(number);
    let mut phase = socket.phase.lock();
    let starts = socket.kind() == Kind::Fresh && is_wanted;
    if starts {
        *phase = Phase::Listening(Listening {
            length,
            ..Listening::default()
        });
        socket.set_kind(Kind::Listening);
        drop(phase);
        open(socket, number, false);
        socket.tell_change();
    }
    starts
}

/// Before a fork: releases a port that the program has not yet accepted on, because the child may be the one to accept.
pub(crate) fn release_unused(socket: &Socket) {
    let mut phase = socket.phase.lock();
    if let Phase::Listening(listening) = &mut *phase
        && !listening.is_used
        && listening
            .backlog
            .as_ref()
            .is_some_and(|backlog| backlog.is_unused())
    {
        let released = (listening.backlog.take(), listening.host.take());
        listening.retry_at = None;
        drop(phase);
        // Before its descriptor is closed, whose number the next one may have.
        socket.tell_change();
        drop(released);
    }
}

/// The rsocket listener, for a call that takes or waits for connections. Starts to listen if possible.
pub(crate) fn listener(socket: &Socket, number: c_int) -> Option<Arc<Backlog>> {
    let backlog = open(socket, number, true)?;
    backlog.attend();
    Some(backlog)
}

fn open(socket: &Socket, number: c_int, is_used: bool) -> Option<Arc<Backlog>> {
    let mut phase = socket.phase.lock();
    let Phase::Listening(listening) = &mut *phase else {
        return None;
    };
    listening.is_used |= is_used;
    let is_early = listening
        .retry_at
        .is_some_and(|retry| Instant::now() < retry);
    if listening.backlog.is_some() || is_early {
        return listening.backlog.clone();
    }
    // Processes that share a listening socket all try this, and only one gets the port.
    listening.retry_at = Some(Instant::now() + RETRY);
    let address = names::plain(names::local(number)?);
    if listening
        .guest
        .as_ref()
        .is_some_and(|guest| !guest.is_over())
    {
        return None;
    }
    listening.guest = None;
    // This takes the name before the port, because a process that has the name may have the port, too.
    let host = match Host::new(address) {
        Err(Errno::ADDRINUSE) => {
            listening.guest = Guest::announce(address);
            if listening.guest.is_some() {
                return None;
            }
            None
        }
        made => made.ok(),
    };
    let how = ListenOptions::default().only_v6(options::is_only_v6(number));
    let listener = match Listener::bind_to_with(address, &how) {
        Ok(listener) => StreamListener::new(listener, settings().options.clone()),
        Err(error) => {
            match error.errno() {
                // An rdma_cm program has it, or a socket that shares its port (`SO_REUSEPORT`).
                libc::EADDRINUSE => {}
                _ => report::complain("listeners stay TCP's", &error),
            }
            return None;
        }
    };
    match Backlog::start(listener, listening.length, socket.is_passed_on.clone()) {
        Ok(backlog) => {
            listening.backlog = Some(backlog.clone());
            listening.host = host.filter(|host| host.serve(&backlog).is_ok());
            drop(phase);
            socket.tell_change();
            Some(backlog)
        }
        Err(errno) => {
            report::complain("listeners stay TCP's", &errno);
            None
        }
    }
}

/// The listener of a socket, before what may end it. `None` if a thread of the program must not wait for that.
pub(crate) fn ending(socket: &Socket) -> Option<Weak<Backlog>> {
    if socket.kind() != Kind::Listening || Inside::is_nested() {
        return None;
    }
    match &*socket.phase.lock() {
        Phase::Listening(listening) => listening.backlog.as_ref().map(Arc::downgrade),
        _ => None,
    }
}

/// After what may have ended a listener: waits until the background thread accepts no more connections for it. A client that
/// connects from here on fails, as with TCP.
pub(crate) fn ended(listener: Option<Weak<Backlog>>) {
    if listener.is_some_and(|listener| listener.strong_count() > 0) {
        background::await_task();
    }
}

/// `shutdown` of a listening socket, which ends the listening and waiting `accept` calls. `None` if the socket does not
/// listen, or `how` leaves it listening (`SHUT_WR`).
pub(crate) fn shutdown(socket: &Socket, number: c_int, how: c_int) -> Option<c_int> {
    if socket.kind() != Kind::Listening || ![libc::SHUT_RD, libc::SHUT_RDWR].contains(&how) {
        return None;
    }
    // SAFETY: shutdown(2) takes no pointers.
    let answer = unsafe { real::shutdown(number, how) };
    if answer == 0 {
        let ending = ending(socket);
        let former = std::mem::replace(&mut *socket.phase.lock(), Phase::Nothing);
        socket.set_kind(Kind::Fresh);
        socket.tell_change();
        // Rejects the connections that wait.
        drop(former);
        ended(ending);
    }
    Some(answer)
}

/// Whether a descriptor is readable, or has ended so that a call on it does not wait.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut fds = [pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    }];
    // SAFETY: the array has one entry.
    unsafe { real::poll(fds.as_mut_ptr(), 1, 0) > 0 && fds[0].revents != 0 }
}

/// `accept4`. Returns the new descriptor number.
///
/// # Errors
/// As for accept4(2).
///
/// # Safety
/// `place` and `length` are as accept(2) requires.
pub(crate) unsafe fn accept(
    socket: &Socket,
    number: c_int,
    place: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Result<c_int> {
    if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    let until = socket
        .timeout(Direction::Read)
        .map(|timeout| Instant::now() + timeout);
    loop {
        let listener = listener(socket, number);
        if let Some(listener) = &listener
            && let Some((newcomer, new)) = take(socket.family, listener, flags)?
        {
            // SAFETY: the caller's promise.
            unsafe { tell_peer(socket.family, &newcomer.stream, place, length) };
            report::count(&report::ACCEPTED);
            let is_nonblocking = flags & SOCK_NONBLOCK != 0;
            let accepted = Socket::accepted(socket.family, newcomer, is_nonblocking);
            inheritance::pass_on(socket, number, &accepted, new);
            enter(new, &Arc::new(accepted));
            return Ok(new);
        }
        // SAFETY: the caller's promise.
        if let Some(new) = unsafe { accept_tcp(socket, number, place, length, flags) }? {
            return Ok(new);
        }
        if socket.is_nonblocking() {
            socket.note_blocked(Direction::Read);
            return Err(Errno::AGAIN);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Errno::AGAIN);
        }
        match &listener {
            Some(listener) => {
                let mut fds = [number, listener.ready().as_raw_fd()].map(|fd| pollfd {
                    fd,
                    events: POLLIN,
                    revents: 0,
                });
                wait_for(&mut fds, left, OnSignal::of(until))?;
            }
            // Another process holds the port. Try again in case it exits.
            None => {
                let left = left.map_or(RETRY, |left| left.min(RETRY));
                wait_kernel(number, Direction::Read, Some(left), OnSignal::of(until))?;
            }
        }
    }
}

/// Accepts a TCP connection if there is one.
///
/// # Safety
/// As for [`accept`].
unsafe fn accept_tcp(
    socket: &Socket,
    number: c_int,
    place: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Result<Option<c_int>> {
    if !is_readable(number) {
        return Ok(None);
    }
    // One thread at a time, of one process: another one could take the connection first, and then this one would sleep in the
    // kernel, where no stream wakes it.
    let accepting = socket.try_accepting();
    let alone = match socket.is_nonblocking() {
        true => Alone::NotNeeded,
        false => Alone::with(number),
    };
    if accepting.is_none() || matches!(alone, Alone::No) {
        // The other one needs the processor to end.
        std::thread::yield_now();
        return Ok(None);
    }
    if !is_readable(number) {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let new = asleep(|| unsafe { real::accept4(number, place, length, flags) });
    match (new, last_errno()) {
        (0.., _) => {
            report::count(&report::TCP_ACCEPTS);
            Ok(Some(new))
        }
        (_, Errno::AGAIN) => Ok(None),
        (_, errno) => Err(errno),
    }
}

/// Whether this process is alone in accepting TCP connections of a listening socket.
///
/// The lock is one of fcntl(2), which processes have, and not the descriptors that they share. `O_NONBLOCK` would be for all of
/// them, and some may be without this library and expect a call that waits.
enum Alone {
    No,
    Locked(c_int),
    /// Also if such a lock cannot be had.
    NotNeeded,
}

impl Alone {
    fn with(number: c_int) -> Self {
        match lock(number, libc::F_WRLCK) {
            Ok(()) => Self::Locked(number),
            Err(Errno::AGAIN | Errno::ACCESS) => Self::No,
            Err(_) => Self::NotNeeded,
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Self::Locked(number) = self {
            // Fails only if the program has closed the descriptor, which ends the lock.
            let _ = lock(*number, libc::F_UNLCK);
        }
    }
}

/// `fcntl` for a lock of the whole file, without a wait.
fn lock(number: c_int, kind: c_int) -> Result<()> {
    // SAFETY: zeros are a lock of the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as c_short;
    // SAFETY: the lock is a valid local variable.
    match unsafe { real::fcntl(number, libc::F_SETLK, (&raw const lock).expose_provenance()) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Takes a stream from the backlog and creates the kernel socket that provides its descriptor.
fn take(family: c_int, backlog: &Backlog, flags: c_int) -> Result<Option<(Newcomer, c_int)>> {
    // Create the descriptor before taking a stream, so that no stream is lost if that fails.
    if backlog.is_empty() {
        return Ok(None);
    }
    // SAFETY: socket(2) takes no pointers.
    let new = unsafe { real::socket(family, SOCK_STREAM | flags, 0) };
    if new < 0 {
        return Err(last_errno());
    }
    let has_room = Table::<Socket>::has_room(new);
    let taken = has_room.then(|| backlog.take()).flatten();
    if taken.is_none() {
        // SAFETY: this function created the descriptor and nothing else uses it.
        unsafe { real::close(new) };
    }
    match has_room {
        true => Ok(taken.map(|newcomer| (newcomer, new))),
        false => Err(Errno::MFILE),
    }
}

/// # Safety
/// As for [`accept`].
unsafe fn tell_peer(family: c_int, stream: &Stream, place: *mut sockaddr, length: *mut socklen_t) {
    if place.is_null() || length.is_null() {
        return;
    }
    let peer = stream.peer_addr();
    let peer = peer.map_or_else(
        |_| names::wildcard(family),
        |peer| names::of_family(peer, family),
    );
    // SAFETY: the caller's promise.
    let _ = unsafe { names::write(&SockAddr::from(peer), place, length) };
}
