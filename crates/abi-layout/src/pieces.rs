//! Pieces of a C program's memory (`struct iovec`).

#![allow(unsafe_code, reason = "pointers of C programs")]

use libc::iovec;
use rustix::io::Errno;

use crate::guard::Result;

/// Maximum of pieces in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// The pieces of a call such as readv(2).
///
/// # Errors
/// `EFAULT` for null, `EINVAL` for more than `IOV_MAX` pieces.
///
/// # Safety
/// The pointer is null, or points to `count` pieces.
pub unsafe fn pieces<'a>(first: *const iovec, count: usize) -> Result<&'a [iovec]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::FAULT),
        (false, count) if count > PIECES_MAX => Err(Errno::INVAL),
        // SAFETY: the caller promises `count` pieces.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// The start and length of a piece. The length is limited to `isize::MAX`.
///
/// # Errors
/// `EFAULT` for null.
pub fn extent(piece: &iovec) -> Result<(*mut u8, usize)> {
    match piece.iov_base.is_null() {
        true => Err(Errno::FAULT),
        false => Ok((
            piece.iov_base.cast(),
            piece.iov_len.min(isize::MAX as usize),
        )),
    }
}
