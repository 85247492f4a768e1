//! IPv4 (RFC 791).

use core::net::Ipv4Addr;

use super::checksum::Sum;
use crate::bytes::{Builder, Fields, head, put};
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

impl Ipv4Repr {
    /// Bytes of a header without options.
    pub const LEN: usize = 20;

    const DONT_FRAGMENT: u16 = 0x4000;
    const MORE_FRAGMENTS: u16 = 0x2000;
    const OFFSET_MASK: u16 = 0x1FFF;

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
        let f = Fields::<{ Self::LEN }>(head("IPv4 header", input)?);
        if f.bits::<0, 4, 4>() != 4 {
            return Err(Error::Malformed {
                what: "IP version",
                expected: "4",
                got: f.bits::<0, 4, 4>().into(),
            });
        }
        let header_len = usize::from(f.bits::<0, 0, 4>()) * 4;
        if header_len < Self::LEN {
            return Err(Error::Malformed {
                what: "IPv4 header length",
                expected: "at least 20 bytes",
                got: header_len as u64,
            });
        }
        let total_len = usize::from(f.u16::<2>());
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
        let fragment = f.u16::<6>();
        let header = Ipv4Repr {
            tos: f.u8::<1>(),
            header_len,
            payload_len: payload.len(),
            identification: f.u16::<4>(),
            dont_fragment: fragment & Self::DONT_FRAGMENT != 0,
            more_fragments: fragment & Self::MORE_FRAGMENTS != 0,
            fragment_offset: fragment & Self::OFFSET_MASK,
            ttl: f.u8::<8>(),
            protocol: f.u8::<9>(),
            src: f.array::<12, 4>().into(),
            dst: f.array::<16, 4>().into(),
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
        let offset = crate::bytes::fit("IPv4 fragment offset", self.fragment_offset.into(), 13)?;
        let flag = |set, bit| if set { bit } else { 0 };
        let fragment = offset as u16
            | flag(self.dont_fragment, Self::DONT_FRAGMENT)
            | flag(self.more_fragments, Self::MORE_FRAGMENTS);
        let mut b = Builder::<{ Self::LEN }>::new();
        b.u8::<0>(0x45) // version, and the header's length in words
            .u8::<1>(self.tos)
            .u16::<2>(total_len)
            .u16::<4>(self.identification)
            .u16::<6>(fragment)
            .u8::<8>(self.ttl)
            .u8::<9>(self.protocol)
            .array::<12, 4>(&self.src.octets())
            .array::<16, 4>(&self.dst.octets());
        let checksum = Sum::default().bytes(b.bytes()).finish();
        b.u16::<10>(checksum);
        put("IPv4 header", &b.finish(), out)
    }
}
