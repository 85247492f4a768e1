//! Reads a file in pieces, keeping only as much in memory as the current piece needs.

use std::io::{ErrorKind, Read};

use pcap_parser::PcapError;
use pcap_parser::nom::{self, Needed};

use super::{CaptureError, Result};

/// Number of bytes to read at a time.
const CHUNK_LEN: usize = 65_536;

/// Why a piece could not be parsed.
#[derive(Debug)]
pub(super) enum Stop {
    /// At least this many bytes are missing.
    Missing(usize),
    /// It contradicts the format.
    Malformed(String),
    /// The whole file is refused.
    Refused(CaptureError),
}

impl From<nom::Err<PcapError<&[u8]>>> for Stop {
    fn from(error: nom::Err<PcapError<&[u8]>>) -> Self {
        match error {
            nom::Err::Incomplete(Needed::Size(missing)) => Stop::Missing(missing.get()),
            nom::Err::Incomplete(Needed::Unknown) => Stop::Missing(1),
            nom::Err::Error(_) | nom::Err::Failure(_) => {
                Stop::Malformed("its lengths or its magic number are wrong".into())
            }
        }
    }
}

/// A value, and the number of bytes that it was parsed from.
pub(super) type Parsed<T> = std::result::Result<(usize, T), Stop>;

#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    /// Bytes that were read and not consumed yet.
    bytes: Vec<u8>,
    /// Number of parsed bytes in `bytes`.
    parsed: usize,
    /// Offset in the file of the next piece.
    offset: u64,
    /// The longest piece.
    piece_max: usize,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R, piece_max: usize) -> Self {
        Source {
            input,
            bytes: Vec::new(),
            parsed: 0,
            offset: 0,
            piece_max,
        }
    }

    /// Parses the next piece, named `what` in errors; `None` at the end of the file.
    pub(super) fn next<T>(
        &mut self,
        what: &'static str,
        mut parse: impl FnMut(&[u8]) -> Parsed<T>,
    ) -> Result<Option<T>> {
        let offset = self.offset;
        loop {
            let bytes = self.bytes.get(self.parsed..).unwrap_or_default();
            let (have, max) = (bytes.len(), self.piece_max);
            let missing = match parse(bytes) {
                Ok((len, value)) => {
                    self.parsed += len;
                    self.offset += len as u64;
                    return Ok(Some(value));
                }
                Err(Stop::Missing(missing)) => missing,
                Err(Stop::Malformed(why)) => {
                    return Err(CaptureError::Malformed { what, offset, why });
                }
                Err(Stop::Refused(error)) => return Err(error),
            };
            let len = have.saturating_add(missing);
            if len > max {
                return Err(CaptureError::TooLong {
                    what,
                    offset,
                    len,
                    max,
                });
            }
            match (self.fill()?, have) {
                (true, _) => {}
                (false, 0) => return Ok(None),
                (false, _) => {
                    return Err(CaptureError::Cut {
                        what,
                        offset,
                        missing,
                    });
                }
            }
        }
    }

    /// Drops consumed bytes and reads more; false at the end of the file.
    fn fill(&mut self) -> Result<bool> {
        self.bytes.drain(..self.parsed);
        self.parsed = 0;
        let old = self.bytes.len();
        self.bytes.resize(old + CHUNK_LEN, 0);
        let read = loop {
            let room = self.bytes.get_mut(old..).unwrap_or_default();
            match self.input.read(room) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.bytes.truncate(old + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }
}
