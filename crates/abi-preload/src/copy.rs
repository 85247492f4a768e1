//! sendfile(2) and splice(2) to or from a stream. They copy.

#![allow(unsafe_code, reason = "calls of libc")]

use std::ffi::c_int;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use libc::{SPLICE_F_NONBLOCK, iovec, off_t};
use portolan::stream::Direction;
use portolan_abi_layout::guard::{Result, last_errno};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::inside::asleep;
use crate::real;
use crate::socket::Socket;
use crate::transfer::{Moved, failed_read, failed_write, of_io, send};
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
    // Before a copy is made of what may not fit.
    if !may_wait && !stream.ready_or_watch(false, true).writable {
        socket.note_blocked(Direction::Write);
        return Err(Errno::AGAIN);
    }
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    // A copy is sent, so what does not fit stays in the pipe, and nothing is lost if a signal ends the call.
    // SAFETY: tee takes no pointers.
    let copied =
        asleep(|| unsafe { libc::tee(from, into.as_raw_fd(), PIECE_BYTES.min(length), flags) });
    let copied = usize::try_from(copied).map_err(|_| last_errno())?;
    if copied == 0 {
        return Ok(Some(0));
    }
    let mut buffer = vec![0u8; copied];
    let copied = rustix::io::read(&out, &mut buffer[..])?;
    let mut sent = 0;
    while sent < copied {
        match stream.try_write(&buffer[sent..copied]) {
            Ok(length) => sent += length,
            Err(_) if sent > 0 => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock && may_wait => {
                if wait_direction(socket, stream, Direction::Write, None)? == Woken::HandedOver {
                    return Ok(None);
                }
            }
            Err(error)
                if error.kind() == ErrorKind::BrokenPipe && socket.may_write_in_vain(stream) =>
            {
                sent = copied;
            }
            Err(error) => return Err(failed_write(socket, &error)),
        }
    }
    // Takes them from the pipe, to the one that is empty again: a read would also take the rest of a packet (O_DIRECT).
    let (null, flags) = (std::ptr::null_mut(), SPLICE_F_NONBLOCK);
    // SAFETY: splice without offsets takes no pointers.
    unsafe { real::splice(from, null, into.as_raw_fd(), null, sent, flags) };
    Ok(Some(sent))
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
            Err(error) => return failed_read(socket, &error),
        }
    };
    let spliced = splice_into(to, &buffer[..peeked], flags)?;
    if spliced > 0 {
        let taken = stream.try_read(&mut buffer[..spliced]);
        let taken = taken.map_err(|error| of_io(&error))?;
        socket.consume(taken);
    }
    Ok(Some(spliced))
}

/// Splices bytes into a pipe. Waits until the pipe has room, and moves what fits. Returns the number of bytes.
fn splice_into(to: c_int, bytes: &[u8], flags: u32) -> Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    // A user's pipes may be short. The end that is read stays as it is, because Linux waits only if both pipes do.
    rustix::io::ioctl_fionbio(&into, true)?;
    let written = rustix::io::write(&into, bytes)?;
    let null = std::ptr::null_mut();
    // SAFETY: splice without offsets takes no pointers.
    let spliced =
        asleep(|| unsafe { real::splice(out.as_raw_fd(), null, to, null, written, flags) });
    usize::try_from(spliced).map_err(|_| last_errno())
}
