//! IPv6 (RFC 8200).

use core::net::Ipv6Addr;

use crate::bytes::{head, put};
use crate::eth::GrhRepr;
use crate::{Error, Gid, Result};

/// An IPv6 header. Extension headers count as payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Traffic class: DSCP 6 bits, ECN 2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of the payload, in bytes.
    pub payload_len: usize,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6Repr {
    /// Bytes of the header.
    pub const LEN: usize = GrhRepr::LEN;

    /// Reads the header at the front of `input`; also returns the payload, without link-layer
    /// padding.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the header, or the length it states, exceeds the input;
    /// [`Error::Malformed`] for another version.
    pub fn parse(input: &[u8]) -> Result<(Ipv6Repr, &[u8])> {
        let bytes: &[u8; Self::LEN] = head("IPv6 header", input)?;
        let version = bytes[0] >> 4;
        if version != 6 {
            return Err(Error::Malformed {
                what: "IP version",
                expected: "6",
                got: version.into(),
            });
        }
        let grh = GrhRepr::parse(bytes)?;
        let payload_len = usize::from(grh.payload_len);
        let payload = input
            .get(Self::LEN..)
            .and_then(|rest| rest.get(..payload_len))
            .ok_or(Error::Truncated {
                what: "IPv6 packet",
                needed: Self::LEN + payload_len,
                got: input.len(),
            })?;
        let header = Ipv6Repr {
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            payload_len,
            next_header: grh.next_header,
            hop_limit: grh.hop_limit,
            src: grh.sgid.to_ipv6(),
            dst: grh.dgid.to_ipv6(),
        };
        Ok((header, payload))
    }

    /// Writes the header at the front of `out`; returns [`LEN`](Ipv6Repr::LEN).
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::OutOfRange`] for a payload of 64 KiB or more, or a flow label
    /// wider than its field.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        let payload_len = u16::try_from(self.payload_len).map_err(|_| Error::OutOfRange {
            what: "IPv6 payload length",
            max: u16::MAX.into(),
            got: self.payload_len as u64,
        })?;
        let grh = GrhRepr {
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            payload_len,
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            sgid: Gid::from_ipv6(self.src),
            dgid: Gid::from_ipv6(self.dst),
        };
        let mut bytes = [0; Self::LEN];
        grh.emit(&mut bytes)?;
        put("IPv6 header", &bytes, out)
    }
}
