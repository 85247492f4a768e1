//! Sending and receiving.

#![allow(unsafe_code, reason = "pointers of C programs")]

use std::ffi::c_int;
use std::io::{Read, Write};

use libc::{sockaddr, socklen_t};
use portolan_abi_layout::pieces::{Joined, extent};
use rustix::io::Errno;

use super::datagram;
use super::errno::of_io;
use super::names;
use super::pieces::{Gather, Scatter};
use super::socket::Rsocket;
use crate::address::Storage;
use crate::guard::Result;

/// `rrecv` and similar calls: returns the number of bytes.
///
/// # Errors
/// `EAGAIN`, `ENOTCONN`, `ECONNRESET`.
pub(crate) fn receive(socket: &Rsocket, into: Scatter<'_>, flags: c_int) -> Result<usize> {
    if let Some(datagrams) = socket.datagrams() {
        return datagram::receive(socket, &datagrams, into, flags).map(|(length, _)| length);
    }
    let is_nonblocking = socket.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let stream = socket.stream(is_nonblocking)?;
    let (peeks, waits_for_all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let mut total = 0;
    for piece in into.0 {
        if piece.iov_len == 0 {
            continue;
        }
        let (first, length) = match extent(piece) {
            Err(_) if total > 0 => return Ok(total),
            extent => extent?,
        };
        // SAFETY: the program's memory for as many bytes, which is the call's until it returns.
        let place = unsafe { std::slice::from_raw_parts_mut(first, length) };
        let mut filled = 0;
        while filled < place.len() {
            let place = &mut place[filled..];
            let may_wait = !is_nonblocking && (total == 0 || waits_for_all);
            let read = match (peeks, may_wait) {
                (true, true) => stream.peek(place),
                (true, false) => stream.try_peek(place),
                (false, true) => (&stream).read(place),
                (false, false) => stream.try_read(place),
            };
            match read {
                // Peeked data stays, so a second look would return the same bytes.
                Ok(length) if peeks => return Ok(total + length),
                Ok(0) => return Ok(total),
                Ok(length) => {
                    filled += length;
                    total += length;
                }
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(of_io(&error)),
            }
        }
    }
    Ok(total)
}

/// `rrecvfrom`: as [`receive`], also returns the peer's address.
///
/// # Errors
/// Those of [`receive`].
///
/// # Safety
/// The place for the address is valid as in recvfrom(2).
pub(crate) unsafe fn receive_from(
    socket: &Rsocket,
    into: Scatter<'_>,
    flags: c_int,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<usize> {
    if let Some(datagrams) = socket.datagrams() {
        let (received, source) = datagram::receive(socket, &datagrams, into, flags)?;
        if !place.is_null() && !length.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { names::write(source, place, length) };
        }
        return Ok(received);
    }
    let received = receive(socket, into, flags)?;
    if received > 0 && !place.is_null() {
        // SAFETY: the caller promises the place.
        unsafe { names::peer_name(socket, place, length) }?;
    }
    Ok(received)
}

/// `rsend` and similar calls: returns the number of bytes. A blocking socket sends all.
///
/// # Errors
/// `EAGAIN`, `ENOTCONN`, `ECONNRESET`.
pub(crate) fn send(socket: &Rsocket, from: Gather<'_>, flags: c_int) -> Result<usize> {
    if let Some(datagrams) = socket.datagrams() {
        return datagram::send(socket, &datagrams, from, flags, None);
    }
    let is_nonblocking = socket.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let stream = socket.stream(is_nonblocking)?;
    let mut total = 0;
    // SAFETY: the program's memory, which stays as it is until the call returns.
    let mut pieces = unsafe { Joined::new(from.0) };
    while let Some(next) = pieces.next_bytes() {
        let mut data = match next {
            Err(_) if total > 0 => return Ok(total),
            next => next?,
        };
        while !data.is_empty() {
            let written = match is_nonblocking {
                true => stream.try_write(data),
                false => (&stream).write(data),
            };
            match written {
                Ok(length) => {
                    total += length;
                    data = &data[length..];
                }
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(of_io(&error)),
            }
        }
    }
    Ok(total)
}

/// `rsendto`. A stream already has its destination.
///
/// # Errors
/// `EISCONN` if the program passes an address for a stream; those of the address.
pub(crate) fn send_to(
    socket: &Rsocket,
    from: Gather<'_>,
    flags: c_int,
    destination: Option<(Storage, usize)>,
) -> Result<usize> {
    match (destination, socket.datagrams()) {
        (None, _) => send(socket, from, flags),
        (Some(_), None) => Err(Errno::ISCONN),
        (Some((bytes, length)), Some(datagrams)) => {
            let to = names::read(&bytes, length)?;
            datagram::send(socket, &datagrams, from, flags, Some(to))
        }
    }
}
