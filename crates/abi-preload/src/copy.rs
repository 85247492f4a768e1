//! sendfile(2) and splice(2) to or from a stream. They copy.

#![allow(unsafe_code, reason = "calls of libc")]

use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::time::Instant;

use libc::{F_GETFL, O_NONBLOCK, SPLICE_F_NONBLOCK, iovec, off_t};
use portolan::Stream;
use portolan::stream::Direction;
use portolan_abi_layout::guard::{Result, last_errno};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::exiting::is_exiting;
use crate::inside::asleep;
use crate::real;
use crate::socket::Socket;
use crate::transfer::{Moved, failed_read, failed_write, send};
use crate::wait::{OnSignal, wait_direction, wait_kernel};

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
    number: c_int,
    socket: &Socket,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> Moved {
    // SAFETY: lseek takes no pointer.
    if offset.is_null() && unsafe { libc::lseek(from, 0, libc::SEEK_CUR) } < 0 {
        // What is read from a pipe cannot be given back.
        return Err(match last_errno() {
            Errno::SPIPE => Errno::INVAL,
            errno => errno,
        });
    }
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
        let sent = unsafe { send(number, socket, &[piece_of(&buffer[..read])], 0) };
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
    let mut until = None;
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
        let rest = &buffer[sent..copied];
        let Some(written) = socket.carry(Direction::Write, |stream| stream.write_now(rest)) else {
            if sent == 0 {
                return Ok(None);
            }
            break;
        };
        match written {
            Ok(length) => sent += length,
            Err(_) if sent > 0 => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock && may_wait => {
                let until = until.get_or_insert_with(|| deadline(socket, Direction::Write));
                wait_direction(socket, stream, Direction::Write, *until)?;
            }
            Err(_) if is_exiting() => sent = copied,
            Err(error)
                if error.kind() == ErrorKind::BrokenPipe && socket.may_write_in_vain(stream) =>
            {
                sent = copied;
            }
            Err(error) => return Err(failed_write(socket, &error, true)),
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
    let until = deadline(socket, Direction::Read);
    let mut buffer = vec![0u8; PIECE_BYTES.min(length)];
    loop {
        // What was looked at is taken before the stream can be handed over.
        let moved = socket.carry(Direction::Read, |stream| move_into(to, stream, &mut buffer));
        match moved {
            None => return Ok(None),
            Some(Ok(Ok(moved))) => return Ok(Some(moved)),
            Some(Ok(Err(Errno::AGAIN)))
                if flags & SPLICE_F_NONBLOCK == 0 && !is_nonblocking(to) =>
            {
                wait_kernel(to, Direction::Write, None, OnSignal::Restarts)?;
            }
            Some(Ok(Err(errno))) => return Err(errno),
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock && may_wait => {
                wait_direction(socket, stream, Direction::Read, until)?;
            }
            Some(Err(error)) => return failed_read(socket, &error),
        }
    }
}

/// When a call ends because of `SO_RCVTIMEO` or `SO_SNDTIMEO`.
fn deadline(socket: &Socket, direction: Direction) -> Option<Instant> {
    let timeout = socket.timeout(direction)?;
    Some(Instant::now() + timeout)
}

fn is_nonblocking(number: c_int) -> bool {
    // SAFETY: F_GETFL takes no pointer.
    let flags = unsafe { real::fcntl(number, F_GETFL, 0) };
    flags >= 0 && flags & O_NONBLOCK != 0
}

/// Moves data from a stream into a pipe, without waiting. Returns their length, or the error of the pipe: `EAGAIN` if it has no
/// room.
fn move_into(to: c_int, stream: &Stream, buffer: &mut [u8]) -> io::Result<Result<usize>> {
    let peeked = stream.read_now(buffer, true)?;
    if peeked == 0 {
        return Ok(Ok(0));
    }
    match splice_into(to, &buffer[..peeked]) {
        Ok(spliced) => {
            // Reads exactly the peeked bytes: `carry` locks other readers out.
            stream.read_now(&mut buffer[..spliced], false).map(Ok)
        }
        Err(errno) => Ok(Err(errno)),
    }
}

/// Splices bytes into a pipe that has room, and moves what fits. Returns the number of bytes.
fn splice_into(to: c_int, bytes: &[u8]) -> Result<usize> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A user's pipes may be short.
    let written = rustix::io::write(&into, bytes)?;
    let (null, flags) = (std::ptr::null_mut(), SPLICE_F_NONBLOCK);
    // SAFETY: splice without offsets takes no pointers.
    let splice = || unsafe { real::splice(out.as_raw_fd(), null, to, null, written, flags) };
    // A pipe without a reader has a signal.
    let spliced = asleep(splice);
    usize::try_from(spliced).map_err(|_| last_errno())
}
