//! The two formats: parses the records of a file into packets.

use pcap_parser::nom::{self, Offset};
use pcap_parser::{
    Block, InterfaceDescriptionBlock, LegacyPcapBlock, PcapHeader, parse_block_be, parse_block_le,
    parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header,
};

use super::source::{Parsed, Stop};
use super::{CaptureError, LinkType, RecordHead};

/// The format of a patched libpcap, with longer record headers.
const MAGIC_KUZNETZOV: u32 = 0xA1B2_CD34;
const MAGIC_GZIP: [u8; 2] = [0x1F, 0x8B];
const MAGIC_PCAPNG: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];
/// A packet block of pcapng's first draft, which the enhanced packet block has replaced.
const PACKET_BLOCK_OBSOLETE: u32 = 2;
/// Maximum number of interfaces in a section.
const INTERFACES_MAX: usize = 4096;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// The part of a file's state that is needed to continue reading.
#[derive(Debug)]
pub(super) enum Format {
    Pcap(PcapHeader),
    PcapNg {
        big_endian: bool,
        interfaces: Vec<Interface>,
    },
}

/// A capture interface.
#[derive(Debug)]
pub(super) struct Interface {
    link: LinkType,
    snap_len: usize,
    units_per_second: u128,
    offset_s: i64,
}

impl Format {
    /// Detects the format by its magic number, and reads pcap's header.
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Format> {
        let Some(magic) = bytes.first_chunk::<4>() else {
            return Err(Stop::Missing(4 - bytes.len()));
        };
        if *magic == MAGIC_PCAPNG {
            let format = Format::PcapNg {
                big_endian: false,
                interfaces: Vec::new(),
            };
            return Ok((0, format));
        }
        if magic.starts_with(&MAGIC_GZIP) {
            return Err(Stop::Refused(CaptureError::Unsupported {
                what: "the file is compressed by gzip",
                advice: "pipe it in: zcat FILE | portolan decode -",
            }));
        }
        if [u32::from_le_bytes(*magic), u32::from_be_bytes(*magic)].contains(&MAGIC_KUZNETZOV) {
            return Err(Stop::Refused(CaptureError::Unsupported {
                what: "a capture in the modified pcap format",
                advice: "convert it first: editcap -F pcap FILE NEW",
            }));
        }
        match parse_pcap_header(bytes) {
            Ok((rest, header)) if header.version_major == 2 => {
                Ok((bytes.offset(rest), Format::Pcap(header)))
            }
            Ok((_, header)) => {
                let major = header.version_major;
                let why = format!("version 2 expected, got {major}");
                Err(Stop::Malformed(why))
            }
            Err(nom::Err::Error(_)) => Err(Stop::Refused(CaptureError::Unrecognized(*magic))),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a record or a block. A packet's bytes go into `packet`; other blocks yield no packet.
    pub(super) fn record(
        &mut self,
        bytes: &[u8],
        packet: &mut Vec<u8>,
    ) -> Parsed<Option<RecordHead>> {
        match self {
            Format::Pcap(header) => {
                let parse = match header.is_bigendian() {
                    true => parse_pcap_frame_be,
                    false => parse_pcap_frame,
                };
                let (rest, frame) = parse(bytes)?;
                store(packet, frame.data);
                Ok((bytes.offset(rest), Some(frame_head(header, &frame))))
            }
            Format::PcapNg {
                big_endian,
                interfaces,
            } => {
                let parse = match big_endian {
                    true => parse_block_be,
                    false => parse_block_le,
                };
                let (rest, block) = parse(bytes)?;
                if let Block::SectionHeader(section) = &block {
                    *big_endian = section.big_endian();
                }
                let head = block_head(&block, *big_endian, interfaces, packet)?;
                Ok((bytes.offset(rest), head))
            }
        }
    }
}

fn frame_head(header: &PcapHeader, frame: &LegacyPcapBlock<'_>) -> RecordHead {
    let ns_per_fraction = match header.is_nanosecond_precision() {
        true => 1,
        false => 1000,
    };
    RecordHead {
        time_ns: u64::from(frame.ts_sec) * NS_PER_SECOND as u64
            + u64::from(frame.ts_usec) * ns_per_fraction,
        // The upper half describes frame check sequences, which trimming to the IP length removes anyway.
        link: LinkType(header.network.0 as u32 & 0xFFFF),
        wire_len: frame.origlen as usize,
    }
}

fn block_head(
    block: &Block<'_>,
    big_endian: bool,
    interfaces: &mut Vec<Interface>,
    packet: &mut Vec<u8>,
) -> Result<Option<RecordHead>, Stop> {
    let (index, captured_len, wire_len, data) = match block {
        Block::SectionHeader(_) => {
            interfaces.clear();
            return Ok(None);
        }
        Block::InterfaceDescription(_) if interfaces.len() == INTERFACES_MAX => {
            let why = format!("more than {INTERFACES_MAX} interfaces in one section");
            return Err(Stop::Malformed(why));
        }
        Block::InterfaceDescription(block) => {
            interfaces.push(Interface::of(block, big_endian)?);
            return Ok(None);
        }
        Block::EnhancedPacket(block) => (block.if_id, block.caplen, block.origlen, block.data),
        Block::SimplePacket(block) => {
            let snap_len = interfaces.first().map_or(0, |first| first.snap_len);
            let captured_len = match snap_len as u32 {
                0 => block.origlen,
                snap_len => block.origlen.min(snap_len),
            };
            (0, captured_len, block.origlen, block.data)
        }
        Block::Unknown(block) if block.block_type == PACKET_BLOCK_OBSOLETE => {
            return Err(Stop::Refused(CaptureError::Unsupported {
                what: "a packet block of pcapng's first draft",
                advice: "convert it first: editcap -F pcapng FILE NEW",
            }));
        }
        _ => return Ok(None),
    };
    let count = interfaces.len();
    let interface = interfaces.get(index as usize).ok_or_else(|| {
        Stop::Malformed(format!("it names interface {index}, of {count} described"))
    })?;
    let captured = data.get(..captured_len as usize).ok_or_else(|| {
        Stop::Malformed(format!(
            "{captured_len} bytes claimed, {} there",
            data.len()
        ))
    })?;
    store(packet, captured);
    let time_ns = match block {
        Block::EnhancedPacket(block) => {
            interface.time_ns(u64::from(block.ts_high) << 32 | u64::from(block.ts_low))
        }
        // A simple packet block has no timestamp.
        _ => 0,
    };
    Ok(Some(RecordHead {
        time_ns,
        link: interface.link,
        wire_len: wire_len as usize,
    }))
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>, big_endian: bool) -> Result<Interface, Stop> {
        let base: u128 = if block.if_tsresol & 0x80 == 0 { 10 } else { 2 };
        let units_per_second = base
            .checked_pow(u32::from(block.if_tsresol & 0x7F))
            .ok_or_else(|| Stop::Malformed("its clock is finer than can be counted".into()))?;
        // The parser assumes a little-endian number in every file.
        let offset_s = match big_endian {
            true => block.if_tsoffset.swap_bytes(),
            false => block.if_tsoffset,
        };
        Ok(Interface {
            link: LinkType(block.linktype.0 as u32),
            snap_len: block.snaplen as usize,
            units_per_second,
            offset_s,
        })
    }

    /// A timestamp as nanoseconds since the epoch, clamped to 64 bits.
    fn time_ns(&self, timestamp: u64) -> u64 {
        let since_offset = u128::from(timestamp) * NS_PER_SECOND / self.units_per_second;
        let offset_ns = i128::from(self.offset_s) * NS_PER_SECOND as i128;
        let time_ns = (since_offset as i128).saturating_add(offset_ns);
        time_ns.clamp(0, i128::from(u64::MAX)) as u64
    }
}

fn store(packet: &mut Vec<u8>, bytes: &[u8]) {
    packet.clear();
    packet.extend_from_slice(bytes);
}
