//! Conversion of arguments and results of the socket calls.

#![allow(unsafe_code, reason = "pointers of C programs")]

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, sockaddr, socklen_t};
use rustix::io::Errno;

use crate::address;
use crate::guard::{Result, caught, failed};

/// Runs the body of a function that returns a number, or -1 with `errno`.
pub(crate) fn number(body: impl FnOnce() -> Result<c_int>) -> c_int {
    caught(body).unwrap_or_else(failed)
}

/// Runs the body of a function that returns a number of bytes, or -1 with `errno`.
pub(crate) fn bytes(body: impl FnOnce() -> Result<usize>) -> isize {
    match caught(body) {
        Ok(bytes) => bytes.cast_signed(),
        Err(errno) => failed(errno) as isize,
    }
}

pub(crate) fn piece(base: *mut c_void, length: usize) -> iovec {
    iovec {
        iov_base: base,
        iov_len: length,
    }
}

/// The pieces of a message without control data.
///
/// # Errors
/// `EFAULT` for null; `EOPNOTSUPP` with control data.
///
/// # Safety
/// The message is null or valid.
pub(crate) unsafe fn pieces_of(message: *const msghdr) -> Result<(*const iovec, usize)> {
    // SAFETY: the caller's promise.
    let message = unsafe { message.as_ref() }.ok_or(Errno::FAULT)?;
    match message.msg_control.is_null() || message.msg_controllen == 0 {
        true => Ok((message.msg_iov, message.msg_iovlen)),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// Values of the program.
///
/// # Errors
/// `EFAULT` for null; `EINVAL` for more than memory can hold.
///
/// # Safety
/// The pointer is null, or points to `count` values.
pub(crate) unsafe fn slice_mut<'a, T>(first: *mut T, count: usize) -> Result<&'a mut [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno::FAULT),
        (false, count) if count > isize::MAX as usize / size_of::<T>().max(1) => Err(Errno::INVAL),
        // SAFETY: the caller's promise.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts_mut(first, count) }),
    }
}

/// Copies an address whose length the program passes.
///
/// # Errors
/// `EFAULT` for null; `EINVAL` for an impossible length.
///
/// # Safety
/// The address is null or has `length` bytes.
pub(crate) unsafe fn address_bytes(
    addr: *const sockaddr,
    length: socklen_t,
) -> Result<(address::Storage, usize)> {
    let mut storage: address::Storage = [0; 128];
    let length = length as usize;
    if addr.is_null() {
        return Err(Errno::FAULT);
    }
    if !(2..=storage.len()).contains(&length) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise, and there is room.
    unsafe { std::ptr::copy_nonoverlapping(addr.cast(), storage.as_mut_ptr(), length) };
    Ok((storage, length))
}
