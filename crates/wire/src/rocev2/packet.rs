//! A checked view of a whole packet.

use core::fmt;

use super::{Headers, ICRC_LEN};
use crate::bth::{self, BthRepr, Opcode, Payload};
use crate::eth::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, DethRepr, FethRepr, IethRepr, ImmDtRepr, RethRepr,
    XrcEthRepr,
};
use crate::{Error, Qpn, Result};

/// A UDP payload from BTH to ICRC, whose lengths and opcode are checked.
///
/// The value of the ICRC is not checked here, because it also covers the IP header: see
/// [`crate::icrc`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    bth: BthRepr,
    payload: &'a [u8],
    bytes: &'a [u8],
}

/// Reads an extension header that starts at `$at` if the opcode has it. [`Packet::parse`] has checked the length.
macro_rules! extension {
    ($packet:ident, $repr:ident, $has:ident, $at:expr) => {{
        if !$packet.bth.opcode.$has() {
            return None;
        }
        $repr::parse($packet.bytes.get($at..)?).ok()
    }};
}

impl<'a> Packet<'a> {
    /// Checks and reads one UDP payload.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the headers, the padding and the ICRC do not fit;
    /// [`Error::Unsupported`] for an unknown opcode; [`Error::Malformed`] if the opcode does not
    /// allow the payload found.
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>> {
        let bth = BthRepr::parse(bytes)?;
        let headers_len = bth.opcode.headers_len();
        let Some(body) = bytes.get(headers_len..) else {
            // The error of `Headers::parse` names the truncated header.
            return Err(Headers::parse(bytes).err().unwrap_or(Error::Truncated {
                what: "RoCEv2 headers",
                needed: headers_len,
                got: bytes.len(),
            }));
        };
        let pad_len = usize::from(bth.pad_count);
        let Some(payload_len) = body.len().checked_sub(pad_len + ICRC_LEN) else {
            return Err(Error::Truncated {
                what: "RoCEv2 packet",
                needed: headers_len + pad_len + ICRC_LEN,
                got: bytes.len(),
            });
        };
        let payload = body.get(..payload_len).unwrap_or_default();
        let malformed = |expected| Error::Malformed {
            what: "RoCEv2 payload length",
            expected,
            got: payload.len() as u64,
        };
        match bth.opcode.payload() {
            Payload::None if !payload.is_empty() => return Err(malformed("no payload")),
            Payload::Exactly(8) if payload.len() != 8 => return Err(malformed("8 bytes")),
            Payload::Exactly(len) if payload.len() != len => return Err(malformed("16 bytes")),
            _ => {}
        }
        Ok(Packet {
            bth,
            payload,
            bytes,
        })
    }

    /// All headers.
    pub fn headers(&self) -> Headers {
        // Cannot fail, because `parse` has checked the lengths.
        Headers::parse(self.bytes).unwrap_or_else(|_| self.bth.into())
    }

    /// Base transport header.
    #[inline]
    pub const fn bth(&self) -> &BthRepr {
        &self.bth
    }

    /// Datagram header, if the opcode has one.
    pub fn deth(&self) -> Option<DethRepr> {
        extension!(self, DethRepr, has_deth, bth::LEN)
    }

    /// XRC header, if the opcode has one.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEthRepr> {
        extension!(self, XrcEthRepr, has_xrceth, bth::LEN)
    }

    /// Flush header, if the opcode has one.
    pub fn feth(&self) -> Option<FethRepr> {
        extension!(self, FethRepr, has_feth, bth::LEN)
    }

    /// RDMA header, if the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<RethRepr> {
        extension!(self, RethRepr, has_reth, self.first_after_xrceth())
    }

    /// Atomic request header, if the opcode has one.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEthRepr> {
        extension!(
            self,
            AtomicEthRepr,
            has_atomic_eth,
            self.first_after_xrceth()
        )
    }

    /// Acknowledge header, if the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<AethRepr> {
        extension!(self, AethRepr, has_aeth, bth::LEN)
    }

    /// Atomic acknowledge header, if the opcode has one.
    pub fn atomic_ack(&self) -> Option<AtomicAckEthRepr> {
        extension!(
            self,
            AtomicAckEthRepr,
            has_atomic_ack_eth,
            self.last(AtomicAckEthRepr::LEN)
        )
    }

    /// Immediate data, if the opcode has it.
    #[inline]
    pub fn immdt(&self) -> Option<ImmDtRepr> {
        extension!(self, ImmDtRepr, has_immdt, self.last(ImmDtRepr::LEN))
    }

    /// Invalidate header, if the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<IethRepr> {
        extension!(self, IethRepr, has_ieth, self.last(IethRepr::LEN))
    }

    /// Offset of a RETH or AtomicETH.
    fn first_after_xrceth(&self) -> usize {
        let opcode = self.bth.opcode;
        let xrceth = usize::from(opcode.has_xrceth()) * XrcEthRepr::LEN;
        let feth = usize::from(opcode.has_feth()) * FethRepr::LEN;
        bth::LEN + xrceth + feth
    }

    /// Offset of the last header, which has this length.
    fn last(&self, len: usize) -> usize {
        self.bth.opcode.headers_len() - len
    }

    /// The payload, without padding.
    #[inline]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The payload if the packet is a management datagram: a UD packet to QP1.
    pub fn mad(&self) -> Option<&'a [u8]> {
        let bth = &self.bth;
        (bth.opcode == Opcode::UdSendOnly && bth.dest_qp == Qpn::GSI).then_some(self.payload)
    }

    /// Offset of the payload from the start of the UDP payload.
    pub const fn payload_offset(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// The padding, at most three bytes; the standard requires zeros.
    pub fn pad(&self) -> &'a [u8] {
        let start = self.payload_offset() + self.payload.len();
        let end = self.bytes.len() - ICRC_LEN;
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// The ICRC in the packet.
    pub fn icrc(&self) -> u32 {
        let icrc = self.bytes.last_chunk().copied();
        u32::from_le_bytes(icrc.unwrap_or_default())
    }

    /// The whole UDP payload.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headers().fmt(f)?;
        if self.bth.opcode.has_payload() {
            write!(f, " len {}", self.payload.len())?;
        }
        Ok(())
    }
}
