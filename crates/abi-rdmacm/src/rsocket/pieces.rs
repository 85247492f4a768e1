//! Pieces of the program's memory that calls send from and receive to.

#![allow(unsafe_code, reason = "pointers of C programs")]

use libc::iovec;
use portolan_abi_layout::pieces::{extent, pieces, scatter};

use crate::guard::Result;

/// The destination of received data: pieces of the program's memory.
#[derive(Clone, Copy)]
pub(crate) struct Scatter<'a>(pub(super) &'a [iovec]);

/// The data to send: pieces of the program's memory.
#[derive(Clone, Copy)]
pub(crate) struct Gather<'a>(pub(super) &'a [iovec]);

impl Scatter<'_> {
    /// # Safety
    /// The pointer is null, or points to `count` pieces of memory that the program does not access during the call.
    pub(crate) unsafe fn new(first: *const iovec, count: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { pieces(first, count) }.map(Self)
    }

    /// The total length of the pieces, bytes.
    pub(super) fn length(self) -> usize {
        let lengths = self.0.iter().map(|piece| piece.iov_len);
        lengths.fold(0, usize::saturating_add)
    }

    /// Copies bytes to the pieces in order. Drops the bytes that do not fit.
    ///
    /// # Errors
    /// `EFAULT` if the pointer of a piece is null.
    pub(super) fn fill(self, bytes: &[u8]) -> Result<()> {
        // SAFETY: the promise of `new`.
        unsafe { scatter(bytes, self.0) }
    }
}

impl Gather<'_> {
    /// The bytes of all pieces, truncated to 64 KiB, which is longer than any datagram.
    ///
    /// # Errors
    /// `EFAULT` if the pointer of a piece is null.
    pub(super) fn to_vec(self) -> Result<Vec<u8>> {
        const LENGTH_MAX: usize = 1 << 16;
        let mut bytes = Vec::new();
        for piece in self.0.iter().filter(|piece| piece.iov_len > 0) {
            let (start, length) = extent(piece)?;
            let length = length.min(LENGTH_MAX - bytes.len());
            // SAFETY: the piece has at least `length` bytes, which the program does not change during the call.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, length) });
        }
        Ok(bytes)
    }

    /// # Safety
    /// The pointer is null, or points to `count` pieces of memory that the program does not change during the call.
    pub(crate) unsafe fn new(first: *const iovec, count: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { pieces(first, count) }.map(Self)
    }
}
