//! Options that pass from the program's socket to its stream, and from a listener to what it accepts (socket(7)).
//!
//! The kernel's socket of an accepted stream is new. So it gets the options that the program has set on the listener.

#![allow(unsafe_code, reason = "options of the kernel's sockets")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{
    IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_TCLASS, SO_KEEPALIVE, SO_LINGER,
    SO_OOBINLINE, SO_PRIORITY, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, TCP_CORK, TCP_KEEPCNT,
    TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY, TCP_USER_TIMEOUT, socklen_t, timeval,
};
use portolan::stream::Direction;
use portolan_abi_layout::guard::last_errno;
use rustix::io::Errno;

use crate::real;
use crate::socket::Socket;

/// What passes to accepted sockets.
const INHERITED: [(c_int, c_int); 15] = [
    (SOL_SOCKET, SO_RCVTIMEO),
    (SOL_SOCKET, SO_SNDTIMEO),
    (IPPROTO_TCP, TCP_KEEPIDLE),
    (SOL_SOCKET, SO_KEEPALIVE),
    (SOL_SOCKET, SO_LINGER),
    (SOL_SOCKET, SO_OOBINLINE),
    (SOL_SOCKET, SO_PRIORITY),
    (IPPROTO_TCP, TCP_CORK),
    (IPPROTO_TCP, TCP_KEEPCNT),
    (IPPROTO_TCP, TCP_KEEPINTVL),
    (IPPROTO_TCP, TCP_NODELAY),
    (IPPROTO_TCP, TCP_USER_TIMEOUT),
    (IPPROTO_IP, IP_TOS),
    (IPPROTO_IP, IP_TTL),
    (IPPROTO_IPV6, IPV6_TCLASS),
];
/// Linux's default of `TCP_KEEPIDLE`, and what it may be (`MAX_TCP_KEEPIDLE`).
const IDLE_S: u32 = 7200;
const IDLE_RANGE_S: std::ops::RangeInclusive<c_int> = 1..=32767;
/// The longest of their values: a `timeval`.
const VALUE_MAX: usize = size_of::<timeval>();

/// The kernel's socket at `number` has got an option: the stream heeds it, too, and accepted sockets will.
///
/// # Safety
/// `value` has a number, or what the kernel has accepted for an option of the level `SOL_SOCKET`.
pub(crate) unsafe fn took(
    socket: &Socket,
    number: c_int,
    (level, name): (c_int, c_int),
    value: *const c_void,
) {
    let known = INHERITED.iter().position(|known| *known == (level, name));
    let Some(at) = known else { return };
    socket.note_option(1 << at);
    match (level, name) {
        (SOL_SOCKET, SO_RCVTIMEO | SO_SNDTIMEO) => {
            let direction = match name {
                SO_RCVTIMEO => Direction::Read,
                _ => Direction::Write,
            };
            // SAFETY: the caller's promise.
            let time = unsafe { value.cast::<timeval>().read_unaligned() };
            let us = time
                .tv_sec
                .saturating_mul(1_000_000)
                .saturating_add(time.tv_usec);
            socket.set_timeout_us(direction, u64::try_from(us).unwrap_or(0));
        }
        (SOL_SOCKET, SO_KEEPALIVE) | (IPPROTO_TCP, TCP_KEEPIDLE) => {
            // SAFETY: the caller's promise.
            let value = unsafe { value.cast::<c_int>().read_unaligned() };
            match name {
                SO_KEEPALIVE if level == SOL_SOCKET => {
                    socket.keeps_alive.store(value != 0, Ordering::Relaxed);
                }
                _ if !IDLE_RANGE_S.contains(&value) => {}
                _ => socket
                    .idle_s
                    .store(value.cast_unsigned(), Ordering::Relaxed),
            }
            keep_alive(socket, number);
        }
        _ => {}
    }
}

/// Whether an option passes to accepted sockets.
pub(crate) fn passes_on(option: (c_int, c_int)) -> bool {
    INHERITED.contains(&option)
}

/// Whether the program has bound a kernel socket to a device (`SO_BINDTODEVICE`) or marked its packets (`SO_MARK`). RDMA's
/// addresses and routes know of neither.
pub(crate) fn has_own_route(number: c_int) -> bool {
    let mut name = [0u8; libc::IFNAMSIZ];
    let mut length = name.len() as socklen_t;
    let place = name.as_mut_ptr().cast();
    // SAFETY: `name` has `length` bytes.
    let answer = unsafe {
        real::getsockopt(
            number,
            SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            place,
            &mut length,
        )
    };
    // Without the device, the call fails.
    let is_bound = answer != 0 && last_errno() == Errno::NODEV || answer == 0 && length > 0;
    is_bound || number_of(number, SOL_SOCKET, libc::SO_MARK) != 0
}

/// Passes a listener's options on to a socket that it has accepted.
pub(crate) fn pass_on(listener: &Socket, from: c_int, accepted: &Socket, to: c_int) {
    let options = listener.options();
    if options == 0 {
        return;
    }
    for (at, (level, name)) in INHERITED.into_iter().enumerate() {
        if options & 1 << at == 0 {
            continue;
        }
        let mut value = [0u8; VALUE_MAX];
        let mut length = value.len() as socklen_t;
        let place = value.as_mut_ptr().cast::<c_void>();
        // SAFETY: `value` has `length` bytes.
        unsafe {
            if real::getsockopt(from, level, name, place, &mut length) == 0
                && real::setsockopt(to, level, name, place, length) == 0
            {
                took(accepted, to, (level, name), place);
            }
        }
    }
}

/// Sets the stream's keepalive interval to TCP's `TCP_KEEPIDLE`, if there is a stream.
fn keep_alive(socket: &Socket, number: c_int) {
    let Some(stream) = socket.stream() else {
        return;
    };
    let seconds = match socket.idle_s.load(Ordering::Relaxed) {
        0 => match number_of(number, IPPROTO_TCP, TCP_KEEPIDLE) {
            // The descriptor may be a relay's.
            ..=0 => IDLE_S,
            seconds => seconds.cast_unsigned(),
        },
        seconds => seconds,
    };
    let interval = Duration::from_secs(seconds.into());
    let is_on = socket.keeps_alive.load(Ordering::Relaxed);
    stream.set_keepalive(is_on.then_some(interval));
}

/// The socket has got its stream. Options that the program set before take effect.
pub(crate) fn connected(socket: &Socket) {
    if socket.options() != 0 {
        keep_alive(socket, socket.number());
    }
}

/// An option of the kernel's socket; 0 if it has none.
pub(crate) fn number_of(number: c_int, level: c_int, name: c_int) -> c_int {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let place = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` has `length` bytes.
    unsafe { real::getsockopt(number, level, name, place, &mut length) };
    value
}
