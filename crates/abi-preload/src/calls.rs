//! The calls on objects of this library, with the program's arguments. `None` if libc must make the call.

#![allow(unsafe_code, reason = "pointers of the program, and calls of libc")]

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use libc::{
    epoll_event, fd_set, iovec, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use portolan_abi_layout::guard::{Result, caught, failed};
use portolan_abi_layout::pieces::{check, pieces, single};
use rustix::io::Errno;

use crate::descriptors::{self, has_object, release, used};
use crate::epoll::{self, Early, waiting};
use crate::inside::{Inside, asleep};
use crate::poll::{self, Sets};
use crate::socket::Kind;
use crate::transfer::{self, Moved, receive};
use crate::{connect, copy, listen, names, real};

/// The call's result, or `None` if the kernel must carry the data.
pub(crate) fn carried(body: impl FnOnce() -> Moved) -> Option<ssize_t> {
    match caught(body) {
        Ok(None) => None,
        Ok(Some(bytes)) => Some(bytes as ssize_t),
        Err(errno) => Some(failed(errno) as ssize_t),
    }
}

pub(crate) fn number(body: impl FnOnce() -> Result<c_int>) -> c_int {
    let _inside = Inside::enter();
    caught(body).unwrap_or_else(failed)
}

pub(crate) fn ms(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// # Safety
/// `timeout` is null or valid for reads.
pub(crate) unsafe fn time(timeout: *const timespec) -> Result<Option<Duration>> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { timeout.as_ref() }) else {
        return Ok(None);
    };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanoseconds = u32::try_from(time.tv_nsec).map_err(|_| Errno::INVAL)?;
    match nanoseconds < 1_000_000_000 {
        true => Ok(Some(Duration::new(seconds, nanoseconds))),
        false => Err(Errno::INVAL),
    }
}

/// Linux limits the length of recv(2) and send(2) to this before it looks at the memory; read(2) and write(2) check first
/// (`MAX_RW_COUNT`).
pub(crate) const SOCKET_BYTES_MAX: size_t = 0x7fff_f000;

pub(crate) unsafe fn read_into(
    fd: c_int,
    into: *mut c_void,
    length: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    let socket = used(fd)?;
    // SAFETY: the program's memory, as read(2) requires.
    carried(|| unsafe { receive(fd, &socket, &single(into, length)?, flags) })
}

pub(crate) unsafe fn write_from(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    let socket = used(fd)?;
    // SAFETY: the program's memory, as write(2) requires.
    carried(|| unsafe { transfer::send(fd, &socket, &single(from, length)?, flags) })
}

pub(crate) unsafe fn receive_from(
    fd: c_int,
    into: *mut c_void,
    length: size_t,
    flags: c_int,
    (address, room): (*mut sockaddr, *mut socklen_t),
) -> Option<ssize_t> {
    // SAFETY: the program's memory, as recvfrom(2) requires.
    let received = unsafe { read_into(fd, into, length, flags) }?;
    // SAFETY: the program's length field, as recvfrom(2) requires.
    let room = unsafe { room.as_mut() };
    // TCP writes no address.
    if received >= 0
        && !address.is_null()
        && let Some(room) = room
    {
        *room = 0;
    }
    Some(received)
}

pub(crate) unsafe fn vector(
    fd: c_int,
    first: *const iovec,
    count: c_int,
    sends: bool,
) -> Option<ssize_t> {
    let socket = used(fd)?;
    carried(|| {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        // SAFETY: the program's iovecs, as readv(2) requires.
        unsafe {
            let pieces = pieces(first, count)?;
            check(pieces)?;
            match sends {
                true => transfer::send(fd, &socket, pieces, 0),
                false => receive(fd, &socket, pieces, 0),
            }
        }
    })
}

/// `poll`. `None` if no descriptor has an object of this library.
pub(crate) unsafe fn poll_all(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: impl FnOnce() -> Result<Option<Duration>>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let count = usize::try_from(count).ok()?;
    if fds.is_null() || count > crate::table::NUMBERS_MAX {
        return None;
    }
    // SAFETY: poll(2) requires `count` descriptors at `fds`.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count) };
    if poll::is_kernels(fds) {
        return None;
    }
    // SAFETY: the program's mask.
    Some(number(|| unsafe { poll::poll(fds, timeout()?, mask) }))
}

/// `select`. `None` if no descriptor has an object of this library.
pub(crate) unsafe fn select_all(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: impl FnOnce() -> Result<Option<Duration>>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let sets = Sets { count, sets };
    // SAFETY: the program's sets (select(2)).
    if count <= 0 || unsafe { sets.is_kernels() } {
        return None;
    }
    // SAFETY: as above, and the program's mask.
    Some(number(|| unsafe { poll::select(sets, timeout()?, mask) }))
}

/// `epoll_wait`; `plain` is the kernel's, for a set without streams.
pub(crate) unsafe fn wait_set(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: impl FnOnce() -> Result<Option<Duration>>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
) -> Option<c_int> {
    // Until the instance is let go, which may end with this call.
    let _inside = Inside::enter();
    let Some(known) = epoll::known(set) else {
        let started = Instant::now();
        let early = Early::begin(set);
        if early.is_none() && epoll::known(set).is_some() {
            // SAFETY: the caller's promises.
            return unsafe { wait_set(set, events, most, timeout, mask, plain) };
        }
        let answer = asleep(plain);
        drop(early);
        let Ok(found) = usize::try_from(answer) else {
            return Some(answer);
        };
        if events.is_null() || found == 0 && epoll::known(set).is_none() {
            return Some(answer);
        }
        // SAFETY: the kernel has accepted the place for `most` events.
        let events = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
        let Some(known) = epoll::known(set) else {
            // A child of a fork may have added streams to the instance.
            return Some(waiting::without_marks(&mut events[..found]).0 as c_int);
        };
        // A stream has entered the set meanwhile.
        let until = timeout().ok().flatten();
        let until = until.and_then(|timeout| started.checked_add(timeout));
        return Some(number(|| {
            Ok(known.wait_on(events, found, until, mask)? as c_int)
        }));
    };
    Some(number(|| {
        let most = usize::try_from(most).map_err(|_| Errno::INVAL)?;
        if most == 0 {
            return Err(Errno::INVAL);
        }
        if events.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: epoll_wait(2) requires room for `most` events.
        let events = unsafe { std::slice::from_raw_parts_mut(events, most) };
        Ok(known.wait(events, timeout()?, mask)? as c_int)
    }))
}

pub(crate) unsafe fn start_connect(
    fd: c_int,
    addr: *const sockaddr,
    length: socklen_t,
) -> Option<c_int> {
    let socket = used(fd)?;
    // SAFETY: the program's address (connect(2)).
    let destination = unsafe { names::read(addr, length) }?;
    Some(number(|| {
        connect::connect(&socket, fd, &destination).map(|()| 0)
    }))
}

pub(crate) unsafe fn accept_from(
    fd: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    let socket = used(fd).filter(|socket| socket.kind() == Kind::Listening)?;
    // SAFETY: the program's address buffer (accept(2)).
    Some(number(|| unsafe {
        listen::accept(&socket, fd, addr, length, flags)
    }))
}

pub(crate) unsafe fn closed(fd: c_int) -> c_int {
    if has_object(fd) {
        release(fd);
    }
    // SAFETY: the program's descriptor.
    unsafe { real::close(fd) }
}

pub(crate) unsafe fn controlled(fd: c_int, command: c_int, argument: usize) -> c_int {
    match has_object(fd) {
        // SAFETY: the program's arguments.
        true => descriptors::control(fd, command, argument, || unsafe {
            real::fcntl(fd, command, argument)
        }),
        // SAFETY: the program's arguments.
        false => unsafe { real::fcntl64(fd, command, argument) },
    }
}

pub(crate) unsafe fn file(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Option<ssize_t> {
    let socket = used(out)?;
    // SAFETY: the program's offset (sendfile(2)).
    carried(|| unsafe { copy::send_file(out, &socket, from, offset, count) })
}
