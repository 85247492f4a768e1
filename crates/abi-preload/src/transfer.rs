//! Sending and receiving.
//!
//! If a stream is handed over amid a call that waits until all is moved, libc's call moves the rest.

#![allow(unsafe_code, reason = "the program's memory")]

use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::time::Instant;

use libc::{
    MSG_DONTWAIT, MSG_ERRQUEUE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, iovec,
};
use portolan::Stream;
use portolan::stream::Direction;
use portolan_abi_layout::guard::{Result, errno_of};
use portolan_abi_layout::pieces::{Joined, extent, scatter};
use rustix::io::Errno;

use crate::exiting::{DELIVERY_WAIT, is_exiting};
use crate::inside::asleep;
use crate::socket::{Kind, Socket};
use crate::wait::{Woken, wait_direction};
use crate::{connect, real};

/// Maximum of peeked bytes in several pieces.
const PEEKED_MAX: usize = 1 << 20;
/// Maximum length of a write after the peer has closed. It equals the length of a stream's buffer.
const UNREAD_MAX: usize = 128 << 10;

/// A call's result. `None` if the kernel carries the data and must do the call.
pub(crate) type Moved = Result<Option<usize>>;

/// The socket's stream. Completes a pending connect first.
fn stream(number: c_int, socket: &Socket, may_wait: bool) -> Result<Option<&Stream>> {
    if socket.kind() == Kind::Connecting {
        match may_wait && !socket.is_nonblocking() {
            true => connect::finish(number, socket)?,
            false => {
                connect::advance(socket);
            }
        }
        if socket.kind() == Kind::Connecting {
            return Err(Errno::AGAIN);
        }
    }
    Ok(socket.stream())
}

/// Receives into the program's iovecs from the socket at `number`.
///
/// # Errors
/// As for recvmsg(2).
///
/// # Safety
/// The iovecs are writable memory that the program does not touch during the call.
pub(crate) unsafe fn receive(
    number: c_int,
    socket: &Socket,
    into: &[iovec],
    flags: c_int,
) -> Moved {
    if flags & MSG_OOB != 0 {
        return Err(Errno::INVAL);
    }
    // Nothing is ever in the queue of errors.
    if flags & MSG_ERRQUEUE != 0 && socket.kind() != Kind::Plain {
        return Err(Errno::AGAIN);
    }
    if flags & MSG_PEEK != 0 && into.len() > 1 {
        // SAFETY: the caller's promise.
        return unsafe { peek_pieces(number, socket, into, flags) };
    }
    let may_wait = !socket.is_nonblocking() && flags & MSG_DONTWAIT == 0;
    let Some(stream) = stream(number, socket, may_wait)? else {
        return Ok(None);
    };
    let (peeks, waits_for_all) = (flags & MSG_PEEK != 0, flags & MSG_WAITALL != 0);
    let until = may_wait
        .then(|| socket.timeout(Direction::Read))
        .flatten()
        .map(|timeout| Instant::now() + timeout);
    let mut total = 0;
    let mut scratch = Vec::new();
    for piece in into.iter().filter(|piece| piece.iov_len > 0) {
        let place = match flags & MSG_TRUNC != 0 {
            // TCP discards the data (tcp(7)).
            true => {
                scratch.resize(piece.iov_len.min(1 << 20), 0);
                &mut scratch[..]
            }
            false => {
                let (first, length) = match extent(piece) {
                    Err(_) if total > 0 => return Ok(Some(total)),
                    extent => extent?,
                };
                // SAFETY: the program's memory, which belongs to this call until it returns.
                unsafe { std::slice::from_raw_parts_mut(first, length) }
            }
        };
        let mut filled = 0;
        while filled < place.len() {
            let rest = &mut place[filled..];
            let moved = match socket.carry(Direction::Read, |stream| stream.read_now(rest, peeks)) {
                Some(moved) => moved,
                None if total == 0 => return Ok(None),
                None if may_wait && waits_for_all => {
                    let (at, length) = (rest.as_mut_ptr().cast(), rest.len());
                    // SAFETY: the place that was made above.
                    match asleep(|| unsafe { real::recv(number, at, length, flags) }) {
                        received @ 1.. if received as usize == length => Ok(length),
                        // Less only after a timeout, a signal, or at the end.
                        received => return Ok(Some(total + received.max(0) as usize)),
                    }
                }
                None => return Ok(Some(total)),
            };
            match moved {
                Ok(0) | Err(_) if is_exiting() && total == 0 && !would_block(&moved) => {
                    return no_end(may_wait);
                }
                // Peeking again would return the same data.
                Ok(length) if peeks => return Ok(Some(total + length)),
                Ok(0) => return Ok(Some(total)),
                Ok(length) => {
                    filled += length;
                    total += length;
                    // A short read: no more data is available.
                    if filled < place.len() && !waits_for_all {
                        return Ok(Some(total));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waits = may_wait && (total == 0 || waits_for_all);
                    let blocked = wait_or_end(socket, stream, Direction::Read, waits, until, total);
                    if let ControlFlow::Break(moved) = blocked {
                        return moved;
                    }
                }
                Err(_) if total > 0 => return Ok(Some(total)),
                Err(error) => return failed_read(socket, &error),
            }
        }
    }
    Ok(Some(total))
}

fn would_block(moved: &io::Result<usize>) -> bool {
    matches!(moved, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// What a read returns at the end of a stream that the exiting process has ended itself.
fn no_end(may_wait: bool) -> Moved {
    if may_wait {
        asleep(|| std::thread::sleep(DELIVERY_WAIT));
    }
    Err(Errno::AGAIN)
}

/// The bytes of several iovecs.
pub(crate) fn length_of(pieces: &[iovec]) -> usize {
    let lengths = pieces.iter().map(|piece| piece.iov_len);
    lengths.fold(0, usize::saturating_add)
}

/// Peeks into several iovecs: a second look at a stream would return the same bytes.
///
/// # Safety
/// As for [`receive`].
unsafe fn peek_pieces(number: c_int, socket: &Socket, into: &[iovec], flags: c_int) -> Moved {
    let length = length_of(into).min(PEEKED_MAX);
    let mut peeked = vec![0u8; length];
    let piece = iovec {
        iov_base: peeked.as_mut_ptr().cast(),
        iov_len: length,
    };
    // SAFETY: this function's own memory; the caller's promise.
    unsafe {
        let found = receive(number, socket, &[piece], flags)?;
        if flags & MSG_TRUNC == 0 {
            scatter(&peeked[..found.unwrap_or(0).min(length)], into)?;
        }
        Ok(found)
    }
}

/// Sends the program's iovecs to the socket at `number`.
///
/// # Errors
/// As for sendmsg(2).
///
/// # Safety
/// The iovecs are readable memory that the program does not change during the call.
pub(crate) unsafe fn send(number: c_int, socket: &Socket, from: &[iovec], flags: c_int) -> Moved {
    if flags & MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let may_wait = !socket.is_nonblocking() && flags & MSG_DONTWAIT == 0;
    let Some(stream) = stream(number, socket, may_wait)? else {
        return Ok(None);
    };
    let until = may_wait
        .then(|| socket.timeout(Direction::Write))
        .flatten()
        .map(|timeout| Instant::now() + timeout);
    let mut total = 0;
    // SAFETY: the program's memory, which it does not change until the call returns.
    let mut pieces = unsafe { Joined::new(from) };
    while let Some(next) = pieces.next_bytes() {
        let mut data = match next {
            Err(_) if total > 0 => return Ok(Some(total)),
            next => next?,
        };
        while !data.is_empty() {
            let moved = match socket.carry(Direction::Write, |stream| stream.write_now(data)) {
                Some(moved) => moved,
                None if total == 0 => return Ok(None),
                None if may_wait => {
                    let (at, length) = (data.as_ptr().cast(), data.len());
                    let flags = flags | MSG_NOSIGNAL;
                    // SAFETY: the program's memory.
                    match asleep(|| unsafe { real::send(number, at, length, flags) }) {
                        sent @ 1.. if sent as usize == length => Ok(length),
                        sent => return Ok(Some(total + sent.max(0) as usize)),
                    }
                }
                None => return Ok(Some(total)),
            };
            match moved {
                Ok(length) => {
                    total += length;
                    data = &data[length..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let blocked =
                        wait_or_end(socket, stream, Direction::Write, may_wait, until, total);
                    if let ControlFlow::Break(moved) = blocked {
                        return moved;
                    }
                }
                Err(_) if total > 0 => return Ok(Some(total)),
                Err(error)
                    if error.kind() == ErrorKind::BrokenPipe
                        && socket.may_write_in_vain(stream) =>
                {
                    return Ok(Some(length_of(from).min(UNREAD_MAX)));
                }
                Err(_) if is_exiting() => return Ok(Some(length_of(from))),
                Err(error) => {
                    return Err(failed_write(socket, &error, flags & MSG_NOSIGNAL == 0));
                }
            }
        }
    }
    Ok(Some(total))
}

/// After an operation that would block: waits until it may be tried again, or ends the call. A call that has moved data
/// ends with its length.
fn wait_or_end(
    socket: &Socket,
    stream: &Stream,
    direction: Direction,
    waits: bool,
    until: Option<Instant>,
    total: usize,
) -> ControlFlow<Moved> {
    let end = match waits {
        true => match wait_direction(socket, stream, direction, until) {
            Ok(Woken::Ready | Woken::HandedOver) => return ControlFlow::Continue(()),
            Err(errno) => Err(errno),
        },
        false => {
            socket.note_blocked(direction);
            Err(Errno::AGAIN)
        }
    };
    ControlFlow::Break(match total {
        0 => end,
        total => Ok(Some(total)),
    })
}

/// What a read returns that has failed. TCP tells an error once; then a stream is at its end.
pub(crate) fn failed_read(socket: &Socket, error: &io::Error) -> Moved {
    match of_io(error) {
        Errno::AGAIN => {
            socket.note_blocked(Direction::Read);
            Err(Errno::AGAIN)
        }
        errno if socket.tell_failure() => Err(errno),
        _ => Ok(Some(0)),
    }
}

/// The error of a write that has failed, after its signal. TCP tells another one than `EPIPE` once.
pub(crate) fn failed_write(socket: &Socket, error: &io::Error, raises: bool) -> Errno {
    match of_io(error) {
        Errno::AGAIN => {
            socket.note_blocked(Direction::Write);
            Errno::AGAIN
        }
        errno if errno != Errno::PIPE && socket.tell_failure() => errno,
        _ => {
            if raises {
                // SAFETY: raise takes no pointer.
                asleep(|| unsafe { libc::raise(libc::SIGPIPE) });
            }
            Errno::PIPE
        }
    }
}

/// The errno that TCP would report for a stream's error.
pub(crate) fn of_io(error: &io::Error) -> Errno {
    match error.kind() {
        ErrorKind::WouldBlock => return Errno::AGAIN,
        ErrorKind::BrokenPipe => return Errno::PIPE,
        ErrorKind::ConnectionReset => return Errno::CONNRESET,
        ErrorKind::NotConnected => return Errno::NOTCONN,
        _ => {}
    }
    let inner = error.get_ref();
    let inner = inner.and_then(|inner| inner.downcast_ref::<portolan::Error>());
    match (inner, error.raw_os_error()) {
        (Some(inner), _) => errno_of(inner.errno()),
        (None, Some(number)) => errno_of(number),
        (None, None) => Errno::IO,
    }
}
