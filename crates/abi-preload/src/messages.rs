//! sendmsg(2) and recvmsg(2): iovecs, and descriptors sent as control data.

#![allow(unsafe_code, reason = "the program's messages")]

use std::ffi::c_int;

use libc::{CMSG_DATA, CMSG_FIRSTHDR, CMSG_NXTHDR, SCM_RIGHTS, SOL_SOCKET, iovec, msghdr};

use portolan_abi_layout::guard::{Result, value};
use portolan_abi_layout::pieces::{check, pieces};
use rustix::io::Errno;

use crate::descriptors::lookup;
use crate::handover;
use crate::inside::Inside;
use crate::socket::Socket;
use crate::transfer::{Moved, length_of, receive, send};

/// The iovecs of a message. For too many, sendmsg(2) has an error other than writev(2)'s.
///
/// # Safety
/// As for sendmsg(2).
unsafe fn of_message(message: &msghdr) -> Result<&[iovec]> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { pieces(message.msg_iov, message.msg_iovlen) };
    pieces.map_err(|errno| match errno {
        Errno::INVAL => Errno::MSGSIZE,
        errno => errno,
    })
}

/// # Safety
/// As for recvmsg(2).
pub(crate) unsafe fn receive_message(
    number: c_int,
    socket: &Socket,
    message: *mut msghdr,
    flags: c_int,
) -> Moved {
    // SAFETY: the caller vouches for the message and its iovecs.
    unsafe {
        let Some(message) = message.as_mut() else {
            return Err(Errno::FAULT);
        };
        let into = of_message(message)?;
        check(into)?;
        let received = receive(number, socket, into, flags)?;
        if received.is_some() {
            (
                message.msg_namelen,
                message.msg_controllen,
                message.msg_flags,
            ) = (0, 0, 0);
        }
        Ok(received)
    }
}

/// # Safety
/// As for sendmsg(2).
pub(crate) unsafe fn send_message(
    number: c_int,
    socket: &Socket,
    message: *const msghdr,
    flags: c_int,
) -> Moved {
    // SAFETY: the caller vouches for the message and its iovecs.
    unsafe {
        let Some(message) = message.as_ref() else {
            return Err(Errno::FAULT);
        };
        let from = of_message(message)?;
        check(from)?;
        send(number, socket, from, flags)
    }
}

/// Whether a call that sent `sent` bytes has sent the whole message.
///
/// # Safety
/// As for sendmsg(2).
pub(crate) unsafe fn is_whole(message: &msghdr, sent: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { of_message(message) }.is_ok_and(|pieces| length_of(pieces) <= sent)
}

/// Before a message goes to another process: hands over the streams whose descriptors it contains.
///
/// # Safety
/// As for sendmsg(2).
pub(crate) unsafe fn give_streams(message: *const msghdr) {
    let _inside = Inside::enter();
    // SAFETY: the caller's promise. The panic hook has printed the message of a panic.
    value((), || unsafe { give_streams_of(message) });
}

unsafe fn give_streams_of(message: *const msghdr) {
    // SAFETY: the caller vouches for the message. Its control data are formatted as cmsg(3) requires.
    unsafe {
        let Some(header) = message.as_ref() else {
            return;
        };
        if header.msg_controllen == 0 || header.msg_control.is_null() {
            return;
        }
        let mut control = CMSG_FIRSTHDR(message);
        while let Some(known) = control.as_ref() {
            if (known.cmsg_level, known.cmsg_type) == (SOL_SOCKET, SCM_RIGHTS) {
                let data = CMSG_DATA(control);
                let header_len = data.addr() - control.addr();
                let count = known.cmsg_len.saturating_sub(header_len) / 4;
                for at in 0..count {
                    let number = data.cast::<c_int>().add(at).read_unaligned();
                    if let Some(socket) = lookup(number) {
                        handover::give_away(&socket);
                    }
                }
            }
            control = CMSG_NXTHDR(message, control);
        }
    }
}
