//! Pieces of a C program's memory (`struct iovec`).

#![allow(unsafe_code, reason = "pointers of C programs")]

use std::ffi::c_void;

use libc::iovec;
use rustix::io::Errno;

use crate::guard::Result;

/// Maximum of pieces in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;
/// The last address of a program, and the maximum length of a piece (`SSIZE_MAX`).
const ADDRESS_MAX: usize = isize::MAX as usize;

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

/// Checks the pieces of a call such as readv(2) as Linux does before it moves a byte.
///
/// # Errors
/// `EINVAL` for a piece longer than `SSIZE_MAX`, `EFAULT` for one that no address space has.
pub fn check(pieces: &[iovec]) -> Result<()> {
    if pieces.iter().any(|piece| piece.iov_len > ADDRESS_MAX) {
        return Err(Errno::INVAL);
    }
    pieces.iter().try_for_each(fits)
}

/// The one piece of read(2) or write(2), checked as Linux does.
///
/// # Errors
/// `EFAULT` for a piece that no address space has.
pub fn single(start: *const c_void, length: usize) -> Result<[iovec; 1]> {
    let piece = iovec {
        iov_base: start.cast_mut(),
        iov_len: length,
    };
    fits(&piece)?;
    Ok([piece])
}

/// The upper half of the addresses is the kernel's.
fn fits(piece: &iovec) -> Result<()> {
    match piece.iov_len > ADDRESS_MAX - piece.iov_base.addr().min(ADDRESS_MAX) {
        true => Err(Errno::FAULT),
        false => Ok(()),
    }
}

/// Copies bytes to the pieces in order. Drops the bytes that do not fit.
///
/// # Errors
/// `EFAULT` if the pointer of a piece is null.
///
/// # Safety
/// The pieces are writable memory that the program does not access during the call.
pub unsafe fn scatter(mut bytes: &[u8], pieces: &[iovec]) -> Result<()> {
    for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
        if bytes.is_empty() {
            break;
        }
        let (start, length) = extent(piece)?;
        let now = bytes.len().min(length);
        // SAFETY: the piece has at least `now` bytes, as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, now) };
        bytes = &bytes[now..];
    }
    Ok(())
}

/// The start and length of a piece. The length is limited to `SSIZE_MAX`.
///
/// # Errors
/// `EFAULT` for null.
pub fn extent(piece: &iovec) -> Result<(*mut u8, usize)> {
    match piece.iov_base.is_null() {
        true => Err(Errno::FAULT),
        false => Ok((piece.iov_base.cast(), piece.iov_len.min(ADDRESS_MAX))),
    }
}

/// Longest piece that is joined with its neighbours, bytes.
const SHORT: usize = 4096;
/// Maximum of joined bytes.
const JOINED_MAX: usize = 64 << 10;

/// The bytes of pieces to send, in order. Short pieces are joined, because a stream sends each as a message of its own.
pub struct Joined<'a> {
    pieces: &'a [iovec],
    buffer: Vec<u8>,
}

impl<'a> Joined<'a> {
    /// # Safety
    /// The pieces are readable memory that the program does not change while this is used.
    pub unsafe fn new(pieces: &'a [iovec]) -> Self {
        let buffer = Vec::new();
        Self { pieces, buffer }
    }

    /// The next bytes, at least one.
    ///
    /// # Errors
    /// `EFAULT` for null.
    pub fn next_bytes(&mut self) -> Option<Result<&[u8]>> {
        let is_empty = |piece: &iovec| piece.iov_len == 0;
        let empty = self.pieces.iter().take_while(|piece| is_empty(piece));
        self.pieces = &self.pieces[empty.count()..];
        let (first, rest) = self.pieces.split_first()?;
        if first.iov_len > SHORT || rest.is_empty() {
            self.pieces = rest;
            return Some(extent(first).map(|(start, length)| {
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts(start, length) }
            }));
        }
        self.buffer.clear();
        while let Some((first, rest)) = self.pieces.split_first()
            && first.iov_len <= SHORT
            && self.buffer.len() + first.iov_len <= JOINED_MAX
        {
            match extent(first) {
                Ok((start, length)) if length > 0 => {
                    // SAFETY: the caller's promise.
                    let bytes = unsafe { std::slice::from_raw_parts(start, length) };
                    self.buffer.extend_from_slice(bytes);
                }
                Err(errno) if first.iov_len > 0 => {
                    if !self.buffer.is_empty() {
                        break;
                    }
                    self.pieces = rest;
                    return Some(Err(errno));
                }
                _ => {}
            }
            self.pieces = rest;
        }
        Some(Ok(&self.buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_no_address_space_has_are_refused() {
        let of = |iov_len| iovec {
            iov_base: std::ptr::without_provenance_mut(0x1000),
            iov_len,
        };
        assert_eq!(check(&[of(8), of(1 << 40)]), Ok(()));
        assert_eq!(check(&[of(8), of(ADDRESS_MAX - 0x1000)]), Ok(()));
        assert_eq!(check(&[of(8), of(ADDRESS_MAX - 0xfff)]), Err(Errno::FAULT));
        assert_eq!(check(&[of(8), of(ADDRESS_MAX + 1)]), Err(Errno::INVAL));
        let start = std::ptr::without_provenance(0x1000);
        assert_eq!(single(start, usize::MAX).err(), Some(Errno::FAULT));
        assert_eq!(single(start, 0).unwrap()[0].iov_len, 0);
    }

    fn all(pieces: &[iovec]) -> Vec<Result<Vec<u8>>> {
        // SAFETY: the tests' own memory.
        let mut joined = unsafe { Joined::new(pieces) };
        let mut found = Vec::new();
        while let Some(next) = joined.next_bytes() {
            found.push(next.map(<[u8]>::to_vec));
        }
        found
    }

    fn piece(bytes: &[u8]) -> iovec {
        iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }
    }

    #[test]
    fn short_pieces_are_joined_and_long_ones_are_not_copied() {
        let long = vec![7; SHORT + 1];
        let pieces = [b"".as_slice(), b"ab", b"", b"c", &long, b"d", b""].map(piece);
        let expected = [b"abc".to_vec(), long, b"d".to_vec()].map(Ok);
        assert_eq!(all(&pieces), expected);
        let full = vec![1; SHORT];
        let pieces = [piece(&full); 20];
        let lengths: Vec<_> = all(&pieces)
            .into_iter()
            .map(|next| next.unwrap().len())
            .collect();
        assert_eq!(lengths, [JOINED_MAX, 4 * SHORT]);
        assert!(all(&[]).is_empty() && all(&[piece(b"")]).is_empty());
    }

    #[test]
    fn a_null_piece_fails_after_the_bytes_before_it() {
        let null = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 1,
        };
        let found = all(&[piece(b"a"), null, piece(b"b")]);
        let expected = [Ok(b"a".to_vec()), Err(Errno::FAULT), Ok(b"b".to_vec())];
        assert_eq!(found, expected);
    }
}
