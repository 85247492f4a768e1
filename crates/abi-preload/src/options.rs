//! Socket options. The kernel's socket has them, except those that only the stream can answer.

#![allow(unsafe_code, reason = "values of the program, and calls of libc")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{
    FIONBIO, FIONREAD, IP_MTU_DISCOVER, IP_OPTIONS, IP_RECVERR, IPPROTO_IP, IPPROTO_IPV6,
    IPPROTO_TCP, IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_UNICAST_HOPS, IPV6_V6ONLY, SO_DOMAIN,
    SO_ERROR, SO_PROTOCOL, SO_ZEROCOPY, SOL_SOCKET, TCP_CONGESTION, TCP_DEFER_ACCEPT, TCP_INFO,
    TCP_LINGER2, TCP_MAXSEG, TCP_NOTSENT_LOWAT, TCP_QUICKACK, TCP_SYNCNT, TCP_WINDOW_CLAMP,
    TIOCOUTQ, socklen_t,
};
use portolan_abi_layout::guard::{Result, failed, last_errno, set_errno};
use rustix::io::Errno;

use crate::connect::advance;
use crate::inheritance::{self, number_of};
use crate::socket::{Kind, Socket};
use crate::transfer::of_io;
use crate::{names, real};

/// `TCP_ESTABLISHED`, the state in `struct tcp_info`.
const ESTABLISHED: u8 = 1;
/// What a program may set on one end of a relay pair without effect, besides what passes to accepted sockets: it changes only
/// when TCP sends, or is only asked for.
const IGNORED_BY_PAIRS: [(c_int, c_int); 16] = [
    (IPPROTO_TCP, TCP_QUICKACK),
    (IPPROTO_TCP, TCP_DEFER_ACCEPT),
    (IPPROTO_TCP, TCP_MAXSEG),
    (IPPROTO_TCP, TCP_CONGESTION),
    (IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    (IPPROTO_TCP, TCP_WINDOW_CLAMP),
    (IPPROTO_TCP, TCP_INFO),
    (IPPROTO_TCP, TCP_LINGER2),
    (IPPROTO_TCP, TCP_SYNCNT),
    (IPPROTO_IP, IP_MTU_DISCOVER),
    (IPPROTO_IP, IP_OPTIONS),
    (IPPROTO_IP, IP_RECVERR),
    (IPPROTO_IPV6, IPV6_MTU_DISCOVER),
    (IPPROTO_IPV6, IPV6_RECVERR),
    (IPPROTO_IPV6, IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, IPV6_V6ONLY),
];

/// `getsockopt`.
///
/// # Safety
/// As for getsockopt(2).
pub(crate) unsafe fn get(
    socket: &Socket,
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let own = match (level, name) {
        (SOL_SOCKET, SO_ERROR) => error(socket),
        (SOL_SOCKET, SO_DOMAIN) => Some(socket.family),
        (SOL_SOCKET, SO_PROTOCOL) => Some(IPPROTO_TCP),
        _ => None,
    };
    if let Some(own) = own {
        // SAFETY: the caller's promise.
        return match unsafe { put(&own.to_ne_bytes(), value, length) } {
            Ok(()) => 0,
            Err(errno) => failed(errno),
        };
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { get_of_kernel(number, level, name, value, length) };
    let is_info = (level, name) == (IPPROTO_TCP, TCP_INFO);
    if answer == 0 && is_info && socket.kind() == Kind::Connected {
        // SAFETY: the kernel has just written to both pointers.
        unsafe {
            if *length > 0 {
                *value.cast::<u8>() = ESTABLISHED;
            }
        }
    }
    answer
}

/// `getsockopt` of a kernel descriptor. One end of a relay pair reports TCP's usual options as unset.
///
/// # Safety
/// As for getsockopt(2).
pub(crate) unsafe fn get_of_kernel(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let answer = unsafe { real::getsockopt(number, level, name, value, length) };
    if answer == 0 || !is_left_out_by_pair(number, (level, name)) {
        return answer;
    }
    let none: &[u8] = match (level, name) {
        (IPPROTO_IP, IP_OPTIONS) => &[],
        _ => &[0; 4],
    };
    // SAFETY: the caller's promise.
    match unsafe { put(none, value, length) } {
        Ok(()) => 0,
        Err(errno) => failed(errno),
    }
}

/// Whether an option call failed because the descriptor is one end of a relay pair, which has no TCP options, though the
/// program may go on as if it had this one. It must hear that others have no effect, above all encryption (`TCP_ULP`).
fn is_left_out_by_pair(number: c_int, option: (c_int, c_int)) -> bool {
    let errno = last_errno();
    let is_unknown = [Errno::OPNOTSUPP, Errno::NOPROTOOPT].contains(&errno);
    let may_be_ignored = inheritance::passes_on(option) || IGNORED_BY_PAIRS.contains(&option);
    let is_left_out = is_unknown && may_be_ignored && names::is_pair(number);
    set_errno(errno);
    is_left_out
}

/// # Safety
/// The pointers are as getsockopt(2) requires.
unsafe fn put(bytes: &[u8], value: *mut c_void, length: *mut socklen_t) -> Result<()> {
    if value.is_null() || length.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if (*length).cast_signed() < 0 {
            return Err(Errno::INVAL);
        }
        let room = (*length as usize).min(bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
        *length = room as socklen_t;
    }
    Ok(())
}

/// Takes `SO_ERROR`. `None` if the kernel's socket has it.
fn error(socket: &Socket) -> Option<c_int> {
    if socket.kind() == Kind::Connecting {
        advance(socket);
    }
    let noted = socket.error.swap(0, Ordering::Relaxed);
    match (socket.kind(), socket.stream()) {
        (_, Some(stream)) => {
            let of_stream = stream.take_error().ok().flatten();
            // Once, by this or by a read or write.
            let of_stream = of_stream.filter(|_| socket.tell_failure());
            Some(of_stream.map_or(noted, |error| of_io(&error).raw_os_error()))
        }
        (Kind::Connecting | Kind::Refused, None) => Some(noted),
        _ => None,
    }
}

/// `setsockopt`.
///
/// # Safety
/// As for setsockopt(2).
pub(crate) unsafe fn set(
    socket: &Socket,
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // A stream copies the program's memory, and reports nothing in the queue of errors.
    if (level, name) == (SOL_SOCKET, SO_ZEROCOPY) && socket.kind() != Kind::Plain {
        return failed(Errno::OPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { set_of_kernel(number, level, name, value, length) };
    if answer != 0 {
        return answer;
    }
    // The kernel has not looked at an option of TCP if the descriptor is one end of a relay pair.
    if !value.is_null() && length as usize >= size_of::<c_int>() {
        // SAFETY: the value has this length, as checked here, or by the kernel if it is longer than a number.
        unsafe { inheritance::took(socket, number, (level, name), value) };
    }
    0
}

/// `setsockopt` of a kernel descriptor. One end of a relay pair ignores TCP's usual options.
///
/// # Safety
/// As for setsockopt(2).
pub(crate) unsafe fn set_of_kernel(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let answer = unsafe { real::setsockopt(number, level, name, value, length) };
    match answer != 0 && is_left_out_by_pair(number, (level, name)) {
        true => 0,
        false => answer,
    }
}

/// Whether a socket at `[::]` leaves IPv4 to others.
pub(crate) fn is_only_v6(number: c_int) -> bool {
    number_of(number, IPPROTO_IPV6, IPV6_V6ONLY) != 0
}

/// `ioctl`. `None` if libc must do it.
///
/// # Safety
/// The argument is as the request requires.
pub(crate) unsafe fn control(
    socket: &Socket,
    number: c_int,
    request: usize,
    argument: usize,
) -> Option<c_int> {
    let place = argument as *mut c_int;
    if request == FIONBIO as usize {
        // SAFETY: the caller's promise.
        let answer = unsafe { real::ioctl(number, request, argument) };
        if answer == 0 {
            // SAFETY: the kernel has just read this value.
            socket.set_nonblocking(unsafe { *place } != 0);
        }
        return Some(answer);
    }
    let stream = socket.stream()?;
    let found = if request == FIONREAD as usize {
        stream.ready().unread_bytes as c_int
    } else if request == TIOCOUTQ as usize {
        // The peer does not say how much it has, but whether it has all.
        c_int::from(stream.wait_delivered(Duration::ZERO).is_err())
    } else {
        return None;
    };
    if place.is_null() {
        return Some(failed(Errno::FAULT));
    }
    // SAFETY: the caller's promise.
    unsafe { *place = found };
    Some(0)
}
