//! UDP (RFC 768).

use crate::bytes::{Value, head, put};
use crate::{Error, Result};

/// A UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the payload, in bytes.
    pub payload_len: usize,
    /// Checksum; zero means none, which RoCEv2 prefers because the ICRC protects the packet.
    pub checksum: u16,
}

impl UdpRepr {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Reads the header at the front of `input`; also returns the payload, of the length that the
    /// header states. The checksum is not checked.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the header, or the length it states, exceeds the input;
    /// [`Error::Malformed`] if that length is shorter than the header.
    pub fn parse(input: &[u8]) -> Result<(UdpRepr, &[u8])> {
        let [src_port, dst_port, len, checksum]: [u16; 4] =
            Value::read(head::<{ Self::LEN }>("UDP header", input)?);
        let len = usize::from(len);
        let datagram = input.get(..len).ok_or(Error::Truncated {
            what: "UDP datagram",
            needed: len,
            got: input.len(),
        })?;
        let payload = datagram.get(Self::LEN..).ok_or(Error::Malformed {
            what: "UDP length",
            expected: "at least 8 bytes",
            got: len as u64,
        })?;
        let header = UdpRepr {
            src_port,
            dst_port,
            payload_len: payload.len(),
            checksum,
        };
        Ok((header, payload))
    }

    /// Writes the header at the front of `out`; returns [`LEN`](UdpRepr::LEN).
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::OutOfRange`] for a datagram of 64 KiB or more.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        let len = Self::LEN + self.payload_len;
        let len = u16::try_from(len).map_err(|_| Error::OutOfRange {
            what: "UDP length",
            max: u16::MAX.into(),
            got: len as u64,
        })?;
        let mut bytes = [0; Self::LEN];
        [self.src_port, self.dst_port, len, self.checksum].write("UDP header", &mut bytes)?;
        put("UDP header", &bytes, out)
    }
}
