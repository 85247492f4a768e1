//! The pcapng format: sections of blocks, each interface with a link type and clock of its own.

use std::io::Read;

use super::source::{Endian, Source};
use super::{CaptureError, LinkType, MAX_PACKET_LEN, RecordHead, Result};

/// The type of a section header block, the same in both byte orders.
pub(super) const SECTION_HEADER_MAGIC: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;

const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET_OBSOLETE: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_END: u16 = 0;
const OPTION_TSRESOL: u16 = 9;
const OPTION_TSOFFSET: u16 = 14;

/// Bytes around a block's body: type and length before it, the length again after it.
const BLOCK_FRAME: usize = 12;
/// The longest block whose body is wanted: a packet with its options.
const MAX_BLOCK_LEN: usize = MAX_PACKET_LEN + 65_536;
/// Interfaces that one section may describe.
const MAX_INTERFACES: usize = 4096;

const NS_PER_SECOND: u128 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct PcapNg {
    endian: Endian,
    interfaces: Vec<Interface>,
    body: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link: LinkType,
    /// Longest captured packet; 0 is no bound.
    snap_len: usize,
    units_per_second: u128,
    offset_s: i64,
}

impl PcapNg {
    /// Reads the first section's header, whose block type was read already.
    pub(super) fn open<R: Read>(source: &mut Source<R>) -> Result<PcapNg> {
        let mut pcapng = PcapNg {
            endian: Endian::Little,
            interfaces: Vec::new(),
            body: Vec::new(),
        };
        pcapng.section(source)?;
        Ok(pcapng)
    }

    /// Reads up to the next packet, which goes into `packet`; `None` at the end of the file.
    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut Source<R>,
        packet: &mut Vec<u8>,
    ) -> Result<Option<RecordHead>> {
        loop {
            let offset = source.offset();
            let mut block_type = [0; 4];
            if !source.fill_or_end(&mut block_type, "block header")? {
                return Ok(None);
            }
            if block_type == SECTION_HEADER_MAGIC {
                self.section(source)?;
                continue;
            }
            let mut len = [0; 4];
            source.fill(&mut len, "block header")?;
            let len = self.endian.u32(len);
            let body_len = body_len(len, BLOCK_FRAME, offset)?;
            let block_type = self.endian.u32(block_type);
            let wanted = matches!(
                block_type,
                INTERFACE_DESCRIPTION | PACKET_OBSOLETE | SIMPLE_PACKET | ENHANCED_PACKET
            );
            if wanted {
                if body_len > MAX_BLOCK_LEN {
                    return Err(CaptureError::TooLong {
                        what: "block",
                        offset,
                        len: body_len,
                        max: MAX_BLOCK_LEN,
                    });
                }
                self.body.resize(body_len, 0);
                source.fill(&mut self.body, "block")?;
            } else {
                source.skip(body_len, "block")?;
            }
            self.trailer(source, len, offset)?;
            let head = match block_type {
                INTERFACE_DESCRIPTION => {
                    self.describe_interface(offset)?;
                    continue;
                }
                PACKET_OBSOLETE | ENHANCED_PACKET => self.enhanced_packet(block_type, packet),
                SIMPLE_PACKET => self.simple_packet(packet),
                _ => continue,
            };
            return match head {
                Ok(head) => Ok(Some(head)),
                Err(why) => Err(CaptureError::Malformed {
                    what: "packet block",
                    offset,
                    why,
                }),
            };
        }
    }

    /// Reads a section header after its block type: its length may only be read once the byte
    /// order magic that follows it is known.
    fn section<R: Read>(&mut self, source: &mut Source<R>) -> Result<()> {
        const WHAT: &str = "section header";
        let offset = source.offset().saturating_sub(4);
        let (mut len, mut magic) = ([0; 4], [0; 4]);
        source.fill(&mut len, WHAT)?;
        source.fill(&mut magic, WHAT)?;
        self.endian = if u32::from_be_bytes(magic) == BYTE_ORDER_MAGIC {
            Endian::Big
        } else if u32::from_le_bytes(magic) == BYTE_ORDER_MAGIC {
            Endian::Little
        } else {
            return Err(CaptureError::Malformed {
                what: WHAT,
                offset,
                why: format!("byte order magic expected, got {magic:02x?}"),
            });
        };
        let len = self.endian.u32(len);
        // The magic counts to the body and is read already.
        source.skip(body_len(len, BLOCK_FRAME + 4, offset)?, WHAT)?;
        self.trailer(source, len, offset)?;
        self.interfaces.clear();
        Ok(())
    }

    fn trailer<R: Read>(&self, source: &mut Source<R>, len: u32, offset: u64) -> Result<()> {
        let mut trailer = [0; 4];
        source.fill(&mut trailer, "block trailer")?;
        let again = self.endian.u32(trailer);
        if again != len {
            return Err(CaptureError::Malformed {
                what: "block",
                offset,
                why: format!("its length is {len} at the start and {again} at the end"),
            });
        }
        Ok(())
    }

    fn describe_interface(&mut self, offset: u64) -> Result<()> {
        let malformed = |why: &str| CaptureError::Malformed {
            what: "interface description",
            offset,
            why: why.into(),
        };
        if self.interfaces.len() == MAX_INTERFACES {
            return Err(malformed("more than 4096 interfaces in one section"));
        }
        let interface =
            Interface::parse(self.endian, &self.body).ok_or_else(|| malformed("too short"))?;
        if interface.units_per_second == 0 {
            return Err(malformed("its clock is finer than can be counted"));
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn enhanced_packet(
        &self,
        block_type: u32,
        packet: &mut Vec<u8>,
    ) -> std::result::Result<RecordHead, String> {
        let mut body = self.body.as_slice();
        let mut field = || {
            self.endian
                .take_u32(&mut body)
                .ok_or("its header is cut short")
        };
        let first = field()?;
        let index = match block_type {
            // Sixteen bits of interface, then sixteen of dropped packets.
            PACKET_OBSOLETE => match self.endian {
                Endian::Big => first >> 16,
                Endian::Little => first & 0xFFFF,
            },
            _ => first,
        };
        let (high, low) = (field()?, field()?);
        let (captured_len, wire_len) = (field()? as usize, field()? as usize);
        let interface = self.interfaces.get(index as usize).ok_or_else(|| {
            format!(
                "it names interface {index}, of {} described",
                self.interfaces.len()
            )
        })?;
        let bytes = body
            .get(..captured_len)
            .ok_or_else(|| format!("{captured_len} bytes claimed, {} there", body.len()))?;
        store(packet, bytes)?;
        Ok(RecordHead {
            time_ns: interface.time_ns(u64::from(high) << 32 | u64::from(low)),
            link: interface.link,
            wire_len,
        })
    }

    fn simple_packet(&self, packet: &mut Vec<u8>) -> std::result::Result<RecordHead, String> {
        let mut body = self.body.as_slice();
        let wire_len = self
            .endian
            .take_u32(&mut body)
            .ok_or("its header is cut short")? as usize;
        let interface = self.interfaces.first().ok_or("no interface is described")?;
        let captured_len = match interface.snap_len {
            0 => wire_len,
            snap_len => wire_len.min(snap_len),
        };
        let bytes = body
            .get(..captured_len)
            .ok_or_else(|| format!("{captured_len} bytes claimed, {} there", body.len()))?;
        store(packet, bytes)?;
        Ok(RecordHead {
            time_ns: 0,
            link: interface.link,
            wire_len,
        })
    }
}

impl Interface {
    fn parse(endian: Endian, mut body: &[u8]) -> Option<Interface> {
        let link = endian.take_u16(&mut body)?;
        endian.take_u16(&mut body)?;
        let snap_len = endian.take_u32(&mut body)? as usize;
        let mut interface = Interface {
            link: LinkType(u32::from(link)),
            snap_len,
            units_per_second: 1_000_000,
            offset_s: 0,
        };
        while !body.is_empty() {
            let code = endian.take_u16(&mut body)?;
            let len = usize::from(endian.take_u16(&mut body)?);
            if code == OPTION_END {
                break;
            }
            let value = body.get(..len)?;
            match (code, value) {
                (OPTION_TSRESOL, &[resolution]) => {
                    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
                    // Zero marks a resolution that no timestamp can have.
                    interface.units_per_second =
                        base.checked_pow(u32::from(resolution & 0x7F)).unwrap_or(0);
                }
                (OPTION_TSOFFSET, value) => {
                    let bytes = <[u8; 8]>::try_from(value).ok()?;
                    interface.offset_s = match endian {
                        Endian::Big => i64::from_be_bytes(bytes),
                        Endian::Little => i64::from_le_bytes(bytes),
                    };
                }
                _ => {}
            }
            body = body.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(interface)
    }

    /// A timestamp as nanoseconds since the epoch, held within what 64 bits count.
    fn time_ns(&self, timestamp: u64) -> u64 {
        let since_offset = u128::from(timestamp) * NS_PER_SECOND / self.units_per_second.max(1);
        let offset_ns = i128::from(self.offset_s) * NS_PER_SECOND as i128;
        let time_ns = (since_offset as i128).saturating_add(offset_ns);
        time_ns.clamp(0, i128::from(u64::MAX)) as u64
    }
}

/// The length of what is left of a block once `frame` bytes of it are taken away.
fn body_len(len: u32, frame: usize, offset: u64) -> Result<usize> {
    let len = len as usize;
    match len.checked_sub(frame) {
        Some(body_len) if len.is_multiple_of(4) => Ok(body_len),
        _ => Err(CaptureError::Malformed {
            what: "block",
            offset,
            why: format!("a multiple of 4 and at least {frame} expected as its length, got {len}"),
        }),
    }
}

fn store(packet: &mut Vec<u8>, bytes: &[u8]) -> std::result::Result<(), String> {
    if bytes.len() > MAX_PACKET_LEN {
        return Err(format!(
            "a packet of {} bytes; at most {MAX_PACKET_LEN} are read",
            bytes.len()
        ));
    }
    packet.clear();
    packet.extend_from_slice(bytes);
    Ok(())
}
