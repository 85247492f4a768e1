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
