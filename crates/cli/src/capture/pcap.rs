//! The pcap format: one file header, then records.

use std::io::Read;

use super::source::{Endian, Source};
use super::{CaptureError, LinkType, MAX_PACKET_LEN, RecordHead, Result};

/// Magic numbers in the writer's byte order: times in microseconds, in nanoseconds.
const MAGIC_US: u32 = 0xA1B2_C3D4;
const MAGIC_NS: u32 = 0xA1B2_3C4D;
/// A patched libpcap's format, whose record headers are longer.
const MAGIC_KUZNETZOV: u32 = 0xA1B2_CD34;
const GZIP: [u8; 2] = [0x1F, 0x8B];

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The rest of the file header, after the magic number: version 2+2, zone 4, accuracy 4, snapshot
/// length 4, link type 4.
const FILE_HEADER_REST: usize = 20;
/// Record header: seconds, fraction, captured length, length on the wire.
const RECORD_HEADER: usize = 16;

#[derive(Debug)]
pub(super) struct Pcap {
    endian: Endian,
    ns_per_fraction: u64,
    link: LinkType,
}

impl Pcap {
    /// Reads the file header, of which `magic` was read already.
    pub(super) fn open<R: Read>(magic: [u8; 4], source: &mut Source<R>) -> Result<Pcap> {
        let (endian, ns_per_fraction) = match (u32::from_be_bytes(magic), u32::from_le_bytes(magic))
        {
            (MAGIC_US, _) => (Endian::Big, 1000),
            (_, MAGIC_US) => (Endian::Little, 1000),
            (MAGIC_NS, _) => (Endian::Big, 1),
            (_, MAGIC_NS) => (Endian::Little, 1),
            (MAGIC_KUZNETZOV, _) | (_, MAGIC_KUZNETZOV) => {
                return Err(CaptureError::Unsupported {
                    what: "a capture in the modified pcap format".into(),
                    advice: "convert it first: editcap -F pcap FILE NEW",
                });
            }
            _ if magic.starts_with(&GZIP) => {
                return Err(CaptureError::Unsupported {
                    what: "the file is compressed by gzip".into(),
                    advice: "pipe it in: zcat FILE | portolan decode -",
                });
            }
            _ => return Err(CaptureError::Unrecognized(magic)),
        };
        let offset = source.offset();
        let mut header = [0; FILE_HEADER_REST];
        source.fill(&mut header, "pcap file header")?;
        let [major_0, major_1, .., link_0, link_1, link_2, link_3] = header;
        let major = endian.u16([major_0, major_1]);
        if major != 2 {
            return Err(CaptureError::Malformed {
                what: "pcap file header",
                offset,
                why: format!("version 2 expected, got {major}"),
            });
        }
        // The upper half tells of frame check sequences, which the IP length trims anyway.
        let link = endian.u32([link_0, link_1, link_2, link_3]) & 0xFFFF;
        Ok(Pcap {
            endian,
            ns_per_fraction,
            link: LinkType(link),
        })
    }

    /// Reads the next record into `packet`; `None` at the end of the file.
    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut Source<R>,
        packet: &mut Vec<u8>,
    ) -> Result<Option<RecordHead>> {
        let offset = source.offset();
        let mut header = [0; RECORD_HEADER];
        if !source.fill_or_end(&mut header, "record header")? {
            return Ok(None);
        }
        let mut fields = [0; RECORD_HEADER / 4];
        for (field, bytes) in fields.iter_mut().zip(header.as_chunks().0) {
            *field = self.endian.u32(*bytes);
        }
        let [seconds, fraction, captured_len, wire_len] = fields;
        let captured_len = captured_len as usize;
        if captured_len > MAX_PACKET_LEN {
            return Err(CaptureError::TooLong {
                what: "record",
                offset,
                len: captured_len,
                max: MAX_PACKET_LEN,
            });
        }
        packet.resize(captured_len, 0);
        source.fill(packet, "packet")?;
        Ok(Some(RecordHead {
            time_ns: u64::from(seconds) * NS_PER_SECOND
                + u64::from(fraction) * self.ns_per_fraction,
            link: self.link,
            wire_len: wire_len as usize,
        }))
    }
}
