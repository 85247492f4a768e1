//! A checked view of a whole packet.

use core::fmt;

use super::{Headers, ICRC_LEN};
use crate::bth::{BthRepr, Opcode, Payload};
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
    headers: Headers,
    payload: &'a [u8],
    pad: &'a [u8],
    icrc: [u8; ICRC_LEN],
    bytes: &'a [u8],
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
        let headers = Headers::parse(bytes)?;
        let body = bytes.get(headers.len()..).unwrap_or_default();
        let pad_len = usize::from(headers.bth.pad_count);
        let truncated = Error::Truncated {
            what: "RoCEv2 packet",
            needed: headers.len() + pad_len + ICRC_LEN,
            got: bytes.len(),
        };
        let (body, icrc) = body.split_last_chunk().ok_or(truncated)?;
        let payload_len = body.len().checked_sub(pad_len).ok_or(truncated)?;
        let (payload, pad) = body.split_at_checked(payload_len).ok_or(truncated)?;
        let malformed = |expected| Error::Malformed {
            what: "RoCEv2 payload length",
            expected,
            got: payload.len() as u64,
        };
        match headers.bth.opcode.payload() {
            Payload::None if !payload.is_empty() => return Err(malformed("no payload")),
            Payload::Exactly(8) if payload.len() != 8 => return Err(malformed("8 bytes")),
            Payload::Exactly(len) if payload.len() != len => return Err(malformed("16 bytes")),
            _ => {}
        }
        Ok(Packet {
            headers,
            payload,
            pad,
            icrc: *icrc,
            bytes,
        })
    }

    /// All headers.
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Base transport header.
    pub const fn bth(&self) -> &BthRepr {
        &self.headers.bth
    }

    /// Datagram header, if the opcode has one.
    pub const fn deth(&self) -> Option<DethRepr> {
        self.headers.deth
    }

    /// XRC header, if the opcode has one.
    pub const fn xrceth(&self) -> Option<XrcEthRepr> {
        self.headers.xrceth
    }

    /// Flush header, if the opcode has one.
    pub const fn feth(&self) -> Option<FethRepr> {
        self.headers.feth
    }

    /// RDMA header, if the opcode has one.
    pub const fn reth(&self) -> Option<RethRepr> {
        self.headers.reth
    }

    /// Atomic request header, if the opcode has one.
    pub const fn atomic_eth(&self) -> Option<AtomicEthRepr> {
        self.headers.atomic_eth
    }

    /// Acknowledge header, if the opcode has one.
    pub const fn aeth(&self) -> Option<AethRepr> {
        self.headers.aeth
    }

    /// Atomic acknowledge header, if the opcode has one.
    pub const fn atomic_ack(&self) -> Option<AtomicAckEthRepr> {
        self.headers.atomic_ack_eth
    }

    /// Immediate data, if the opcode has it.
    pub const fn immdt(&self) -> Option<ImmDtRepr> {
        self.headers.immdt
    }

    /// Invalidate header, if the opcode has one.
    pub const fn ieth(&self) -> Option<IethRepr> {
        self.headers.ieth
    }

    /// The payload, without padding.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The payload if the packet is a management datagram: a UD packet to QP1.
    pub fn mad(&self) -> Option<&'a [u8]> {
        let bth = &self.headers.bth;
        (bth.opcode == Opcode::UdSendOnly && bth.dest_qp == Qpn::GSI).then_some(self.payload)
    }

    /// Offset of the payload from the start of the UDP payload.
    pub const fn payload_offset(&self) -> usize {
        self.headers.len()
    }

    /// The padding, at most three bytes; the standard requires zeros.
    pub const fn pad(&self) -> &'a [u8] {
        self.pad
    }

    /// The ICRC in the packet.
    pub const fn icrc(&self) -> u32 {
        u32::from_le_bytes(self.icrc)
    }

    /// The whole UDP payload.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headers.fmt(f)?;
        if self.headers.bth.opcode.has_payload() {
            write!(f, " len {}", self.payload.len())?;
        }
        Ok(())
    }
}
