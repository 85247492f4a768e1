//! A byte source that knows its offset and says what was being read when it ran dry.

use std::io::{ErrorKind, Read};

use super::{CaptureError, Result};

/// Bytes in which unwanted blocks are skipped at a time.
const SKIP_CHUNK: usize = 4096;

#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    offset: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Self {
        Source { input, offset: 0 }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `buffer` whole.
    pub(super) fn fill(&mut self, buffer: &mut [u8], what: &'static str) -> Result<()> {
        if self.fill_or_end(buffer, what)? || buffer.is_empty() {
            return Ok(());
        }
        Err(CaptureError::Cut {
            what,
            offset: self.offset,
            needed: buffer.len(),
            got: 0,
        })
    }

    /// Fills `buffer` whole, or returns false if the file ends just here.
    pub(super) fn fill_or_end(&mut self, buffer: &mut [u8], what: &'static str) -> Result<bool> {
        let start = self.offset;
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    return Err(CaptureError::Cut {
                        what,
                        offset: start,
                        needed: buffer.len(),
                        got: filled,
                    });
                }
                Ok(count) => {
                    filled += count;
                    self.offset += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Passes over `len` bytes.
    pub(super) fn skip(&mut self, len: usize, what: &'static str) -> Result<()> {
        let mut chunk = [0; SKIP_CHUNK];
        let mut left = len;
        while left > 0 {
            let step = left.min(SKIP_CHUNK);
            self.fill(chunk.get_mut(..step).unwrap_or_default(), what)?;
            left -= step;
        }
        Ok(())
    }
}

/// The byte order of a file's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endian {
    Big,
    Little,
}

impl Endian {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Endian::Big => u16::from_be_bytes(bytes),
            Endian::Little => u16::from_le_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Endian::Big => u32::from_be_bytes(bytes),
            Endian::Little => u32::from_le_bytes(bytes),
        }
    }

    /// Takes a 16-bit number off the front of `input`; `None` if it is too short.
    pub(super) fn take_u16(self, input: &mut &[u8]) -> Option<u16> {
        let (bytes, rest) = input.split_first_chunk()?;
        *input = rest;
        Some(self.u16(*bytes))
    }

    /// Takes a 32-bit number off the front of `input`; `None` if it is too short.
    pub(super) fn take_u32(self, input: &mut &[u8]) -> Option<u32> {
        let (bytes, rest) = input.split_first_chunk()?;
        *input = rest;
        Some(self.u32(*bytes))
    }
}
