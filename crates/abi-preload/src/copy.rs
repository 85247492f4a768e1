//! sendfile(2) and splice(2) to or from a stream. They copy.

#![allow(unsafe_code, reason = "calls of libc")]

use std::ffi::c_int;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use libc::{O_NONBLOCK, SPLICE_F_NONBLOCK, iovec, off_t};
use portolan::Stream;
use portolan::stream::Direction;
use portolan_abi_layout::guard::{Result, last_errno};
use rustix::io::Errno;

use crate::real;
use crate::socket::Socket;
use crate::transfer::{Moved, of_io, send};
use crate::wait::{Woken, wait_direction};

/// Bytes per copy.
const PIECE_BYTES: usize = 64 << 10;

fn piece_of(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// `sendfile` to a stream.
///
/// # Errors
/// As for sendfile(2).
///
/// # Safety
/// `offset` is null or valid for reads and writes.
pub(crate) unsafe fn send_file(
    socket: &Socket,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> Moved {
    let mut buffer = vec![0u8; PIECE_BYTES.min(count)];
    let mut total = 0;
    while total < count {
        let room = buffer.len().min(count - total);
        // SAFETY: the buffer has `room` bytes; the caller vouches for the offset.
        let read = unsafe {
            match offset.as_ref() {
                Some(offset) => libc::pread(from, buffer.as_mut_ptr().cast(), room, *offset),
                None => real::read(from, buffer.as_mut_ptr().cast(), room),
            }
        };
        let read = match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if total > 0 => break,
            Err(_) => return Err(last_errno()),
        };
        // SAFETY: the slice is this function's own buffer.
        let sent = unsafe { send(socket, &[piece_of(&buffer[..read])], 0) };
        let done = *sent.as_ref().ok().and_then(Option::as_ref).unwrap_or(&0);
        // SAFETY: the caller vouches for the offset. Without one, the file's position moves back over unsent bytes.
        unsafe {
            match offset.as_mut() {
                Some(offset) => *offset += done as off_t,
                None if done < read => {
                    libc::lseek(from, -((read - done) as off_t), libc::SEEK_CUR);
                }
                None => {}
            }
        }
        total += done;
        match sent {
            Ok(Some(_)) if done == read => {}
            _ if total > 0 => break,
            sent => return sent,
        }
    }
    Ok(Some(total))
}

/// `splice` from a pipe to a stream.
///
/// # Errors
/// As for splice(2).
pub(crate) fn to_stream(from: c_int, socket: &Socket, length: usize, flags: u32) -> Moved {
    let Some(stream) = socket.stream() else {
        return Ok(None);
    };
    let may_wait = flags & SPLICE_F_NONBLOCK == 0 && !socket.is_nonblocking();
    while !stream.ready_or_watch(false, true).writable {
        if !may_wait {
            socket.note_blocked(Direction::Write);
            return Err(Errno::AGAIN);
        }
        if wait_direction(socket, stream, Direction::Write, None)? == Woken::HandedOver {
            return Ok(None);
        }
    }
    let length = PIECE_BYTES.min(length);
    if !may_wait {
        return splice_now(from, socket, stream, length, flags);
    }
    let mut buffer = vec![0u8; length];
    let read = read_pipe(from, &mut buffer)?;
    // These bytes have left the pipe and must be sent, even if that blocks.
    let mut sent = 0;
    while sent < read {
        match stream.try_write(&buffer[sent..read]) {
            Ok(length) => sent += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_direction(socket, stream, Direction::Write, None)?;
            }
            Err(error) => return Err(of_io(&error)),
        }
    }
    Ok(Some(sent))
}

/// Moves what the stream has room for from a pipe. A copy is sent, so what does not fit stays in the pipe.
fn splice_now(from: c_int, socket: &Socket, stream: &Stream, length: usize, flags: u32) -> Moved {
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: tee takes no pointers.
    let copied = unsafe { libc::tee(from, into.as_raw_fd(), length, flags & SPLICE_F_NONBLOCK) };
    let copied = usize::try_from(copied).map_err(|_| last_errno())?;
    let mut buffer = vec![0u8; copied];
    if copied == 0 {
        return Ok(Some(0));
    }
    let copied = read_pipe(out.as_raw_fd(), &mut buffer)?;
    let mut sent = 0;
    while sent < copied {
        match stream.try_write(&buffer[sent..copied]) {
            Ok(length) => sent += length,
            Err(_) if sent > 0 => break,
            Err(error) => {
                let errno = of_io(&error);
                if errno == Errno::AGAIN {
                    socket.note_blocked(Direction::Write);
                }
                return Err(errno);
            }
        }
    }
    // Takes them from the pipe, to the one that is empty again: a read would also take the rest of a packet (O_DIRECT).
    let (null, flags) = (std::ptr::null_mut(), SPLICE_F_NONBLOCK);
    // SAFETY: splice without offsets takes no pointers.
    unsafe { real::splice(from, null, into.as_raw_fd(), null, sent, flags) };
    Ok(Some(sent))
}

fn read_pipe(from: c_int, into: &mut [u8]) -> Result<usize> {
    // SAFETY: the slice's own length.
    let read = unsafe { real::read(from, into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(read).map_err(|_| last_errno())
}

/// `splice` from a stream to a pipe.
///
/// # Errors
/// As for splice(2).
pub(crate) fn from_stream(socket: &Socket, to: c_int, length: usize, flags: u32) -> Moved {
    let Some(stream) = socket.stream() else {
        return Ok(None);
    };
    let may_wait = flags & SPLICE_F_NONBLOCK == 0 && !socket.is_nonblocking();
    let mut buffer = vec![0u8; PIECE_BYTES.min(length)];
    let peeked = loop {
        match stream.try_peek(&mut buffer) {
            Ok(peeked) => break peeked,
            Err(error) if error.kind() == ErrorKind::WouldBlock && may_wait => {
                if wait_direction(socket, stream, Direction::Read, None)? == Woken::HandedOver {
                    return Ok(None);
                }
            }
            Err(error) => {
                let errno = of_io(&error);
                if errno == Errno::AGAIN {
                    socket.note_blocked(Direction::Read);
                }
                return Err(errno);
            }
        }
    };
    let written = write_to_pipe(to, &buffer[..peeked], may_wait)?;
    if written > 0 {
        let taken = stream.try_read(&mut buffer[..written]);
        let taken = taken.map_err(|error| of_io(&error))?;
        socket.consume(taken);
    }
    Ok(Some(written))
}

/// Writes to a pipe. Does not block unless `may_wait`.
fn write_to_pipe(to: c_int, bytes: &[u8], may_wait: bool) -> Result<usize> {
    // SAFETY: F_GETFL reads a descriptor's flags and takes no pointer.
    let flags = unsafe { real::fcntl(to, libc::F_GETFL, 0) };
    let waits = flags & O_NONBLOCK == 0;
    if waits && !may_wait {
        let mut fds = [libc::pollfd {
            fd: to,
            events: libc::POLLOUT,
            revents: 0,
        }];
        // SAFETY: the array has one entry.
        if unsafe { real::poll(fds.as_mut_ptr(), 1, 0) } <= 0 {
            return Err(Errno::AGAIN);
        }
    }
    // POLLOUT guarantees room for PIPE_BUF bytes only.
    let length = match waits && !may_wait {
        true => bytes.len().min(libc::PIPE_BUF),
        false => bytes.len(),
    };
    // SAFETY: `length` is at most the slice's length.
    let written = unsafe { real::write(to, bytes.as_ptr().cast(), length) };
    usize::try_from(written).map_err(|_| last_errno())
}
