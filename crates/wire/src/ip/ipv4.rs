//! IPv4 (RFC 791).

use core::net::Ipv4Addr;

use super::checksum::Sum;
use crate::bytes::{At, Bits, Value, head, layout, put};
use crate::{Error, Result};

/// An IPv4 header. Options are skipped on parsing and never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Repr {
    /// Type of service: DSCP 6 bits, ECN 2.
    pub tos: u8,
    /// Length of the header in bytes: 20, more with options.
    pub header_len: usize,
    /// Length of the payload, in bytes.
    pub payload_len: usize,
    /// Identification.
    pub identification: u16,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Offset of this fragment in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

layout! {
    /// The fields as they are in the header.
    struct Fields("IPv4", Ipv4Repr::LEN) {
        version: u8 = Bits<0, 4, 4>,
        header_words: u8 = Bits<0, 0, 4>,
        tos: u8 = At<1>,
        total_len: u16 = At<2>,
        identification: u16 = At<4>,
        dont_fragment: bool = Bits<6, 6, 1>,
        more_fragments: bool = Bits<6, 5, 1>,
        fragment_offset: u16 = Bits<6, 0, 13>,
        ttl: u8 = At<8>,
        protocol: u8 = At<9>,
        src: [u8; 4] = At<12>,
        dst: [u8; 4] = At<16>,
    }
}

impl Ipv4Repr {
    /// Bytes of a header without options.
    pub const LEN: usize = 20;

    /// True for a fragment of a larger datagram.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Reads the header at the front of `input`; also returns the payload, without link-layer
    /// padding. The header checksum is not checked, because captures of outgoing packets may
    /// contain an incomplete one.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the header, or the length it states, exceeds the input;
    /// [`Error::Malformed`] for another version, or lengths that contradict each other.
    pub fn parse(input: &[u8]) -> Result<(Ipv4Repr, &[u8])> {
        let fields = Fields::read(head::<{ Self::LEN }>("IPv4 header", input)?);
        if fields.version != 4 {
            return Err(Error::Malformed {
                what: "IP version",
                expected: "4",
                got: fields.version.into(),
            });
        }
        let header_len = usize::from(fields.header_words) * 4;
        if header_len < Self::LEN {
            return Err(Error::Malformed {
                what: "IPv4 header length",
                expected: "at least 20 bytes",
                got: header_len as u64,
            });
        }
        let total_len = usize::from(fields.total_len);
        let packet = input.get(..total_len).ok_or(Error::Truncated {
            what: "IPv4 packet",
            needed: total_len,
            got: input.len(),
        })?;
        let payload = packet.get(header_len..).ok_or(Error::Malformed {
            what: "IPv4 total length",
            expected: "no less than the header length",
            got: total_len as u64,
        })?;
        let header = Ipv4Repr {
            tos: fields.tos,
            header_len,
            payload_len: payload.len(),
            identification: fields.identification,
            dont_fragment: fields.dont_fragment,
            more_fragments: fields.more_fragments,
            fragment_offset: fields.fragment_offset,
            ttl: fields.ttl,
            protocol: fields.protocol,
            src: fields.src.into(),
            dst: fields.dst.into(),
        };
        Ok((header, payload))
    }

    /// Writes the header, without options and with its checksum, at the front of `out`; returns
    /// [`LEN`](Ipv4Repr::LEN).
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::OutOfRange`] for a packet of 64 KiB or more, or an offset wider
    /// than its field.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        let total_len = Self::LEN + self.payload_len;
        let total_len = u16::try_from(total_len).map_err(|_| Error::OutOfRange {
            what: "IPv4 total length",
            max: u16::MAX.into(),
            got: total_len as u64,
        })?;
        let fields = Fields {
            version: 4,
            header_words: (Self::LEN / 4) as u8,
            tos: self.tos,
            total_len,
            identification: self.identification,
            dont_fragment: self.dont_fragment,
            more_fragments: self.more_fragments,
            fragment_offset: self.fragment_offset,
            ttl: self.ttl,
            protocol: self.protocol,
            src: self.src.octets(),
            dst: self.dst.octets(),
        };
        let mut bytes = [0; Self::LEN];
        fields.write("IPv4 header", &mut bytes)?;
        let checksum = Sum::default().bytes(&bytes).finish();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        put("IPv4 header", &bytes, out)
    }
}
