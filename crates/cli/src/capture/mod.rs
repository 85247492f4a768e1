//! Capture files: reading pcap and pcapng as a stream, and writing pcap.
//!
//! Reading keeps one record in memory at a time, whatever the size of the file, and reports the offset of an error.

mod error;
mod format;
mod link;
mod source;
mod synthesize;
mod writer;

pub(crate) use error::{CaptureError, Result};
pub(crate) use link::{LinkType, NotIp, ip_packet};
pub(crate) use synthesize::{UdpHeaders, udp_packet};
pub(crate) use writer::PcapWriter;

use std::io::Read;

use format::Format;
use source::Source;

/// Maximum length of a captured packet: the snapshot length that capture programs use for unlimited.
pub(crate) const MAX_PACKET_LEN: usize = 262_144;

/// One captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Number in the file, from 1, as Wireshark counts.
    pub(crate) number: u64,
    /// Nanoseconds since the epoch.
    pub(crate) time_ns: u64,
    /// The type of the header at the start of `bytes`.
    pub(crate) link: LinkType,
    /// Length on the wire; exceeds that of `bytes` if the capture truncated the packet.
    pub(crate) wire_len: usize,
    /// The bytes captured, link-layer header first.
    pub(crate) bytes: &'a [u8],
}

/// A parsed record header; the packet's bytes are in the buffer.
#[derive(Debug, Clone, Copy)]
struct RecordHead {
    time_ns: u64,
    link: LinkType,
    wire_len: usize,
}

/// Maximum length of a record or block.
const PIECE_LEN_MAX: usize = MAX_PACKET_LEN + 65_536;

/// Reads a capture file of either format.
#[derive(Debug)]
pub(crate) struct CaptureReader<R> {
    source: Source<R>,
    format: Format,
    packet: Vec<u8>,
    number: u64,
}

impl<R: Read> CaptureReader<R> {
    /// Reads the file's header and detects the format by its magic number.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Unrecognized`] if it is not a capture file, and errors of reading.
    pub(crate) fn new(input: R) -> Result<Self> {
        let mut source = Source::new(input, PIECE_LEN_MAX);
        let format = source.next("file header", Format::parse)?;
        Ok(CaptureReader {
            source,
            format: format.ok_or(CaptureError::Empty)?,
            packet: Vec::new(),
            number: 0,
        })
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// The file is truncated or malformed; nothing more can be read from it.
    pub(crate) fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        let head = loop {
            let (format, packet) = (&mut self.format, &mut self.packet);
            let parsed = self
                .source
                .next("record", |bytes| format.record(bytes, packet))?;
            match parsed {
                Some(Some(head)) => break head,
                Some(None) => {}
                None => return Ok(None),
            }
        };
        self.number += 1;
        Ok(Some(Record {
            number: self.number,
            time_ns: head.time_ns,
            link: head.link,
            wire_len: head.wire_len.max(self.packet.len()),
            bytes: &self.packet,
        }))
    }
}

#[cfg(test)]
mod tests;
