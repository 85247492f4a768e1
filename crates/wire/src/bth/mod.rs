//! The base transport header (IBTA 9.2), at the front of every packet.

mod opcode;

pub use opcode::{Opcode, Payload, Transport};

use crate::bytes::{At, Bits, Place, head, put};
use crate::{Error, PKey, Psn, Qpn, Result};

/// Length of the header, in bytes.
pub const LEN: usize = 12;

/// Offset of the byte that routers may change (FECN, BECN); the ICRC replaces it with ones.
pub const VARIANT_BYTE: usize = 4;

/// The base transport header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BthRepr {
    /// The packet's transport and operation.
    pub opcode: Opcode,
    /// The responder shall raise a solicited completion event.
    pub solicited: bool,
    /// Path migration state: true means migrated. Packets outside of any migration also carry true
    /// (rxe sends true, the MADs of some devices false).
    pub migreq: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad_count: u8,
    /// Transport header version, four bits; zero is the only defined one.
    pub tver: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// The responder shall acknowledge this packet.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl BthRepr {
    /// A header with the given opcode, destination and PSN; default partition, no flags.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> BthRepr {
        BthRepr {
            opcode,
            solicited: false,
            migreq: true,
            pad_count: 0,
            tver: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header at the front of `input`. Reserved bits are ignored, as IBTA 9.2 asks.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`]; [`Error::Unsupported`] for an opcode that is not one of [`Opcode`].
    #[inline]
    pub fn parse(input: &[u8]) -> Result<BthRepr> {
        let bytes: &[u8; LEN] = head("BTH", input)?;
        Ok(BthRepr {
            opcode: Opcode::from_value(bytes[0])?,
            solicited: Bits::<1, 7, 1>::get(bytes),
            migreq: Bits::<1, 6, 1>::get(bytes),
            pad_count: Bits::<1, 4, 2>::get(bytes),
            tver: Bits::<1, 0, 4>::get(bytes),
            pkey: At::<2>::get(bytes),
            fecn: Bits::<4, 7, 1>::get(bytes),
            becn: Bits::<4, 6, 1>::get(bytes),
            dest_qp: Bits::<5, 0, 24>::get(bytes),
            ack_request: Bits::<8, 7, 1>::get(bytes),
            psn: Bits::<9, 0, 24>::get(bytes),
        })
    }

    /// Writes the header at the front of `out`; returns [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::OutOfRange`] for a `pad_count` above 3 or a `tver` above 15.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        let mut bytes = [0; LEN];
        bytes[0] = self.opcode.value();
        Bits::<1, 7, 1>::put("BTH solicited", &self.solicited, &mut bytes)?;
        Bits::<1, 6, 1>::put("BTH migreq", &self.migreq, &mut bytes)?;
        Bits::<1, 4, 2>::put("BTH pad count", &self.pad_count, &mut bytes)?;
        Bits::<1, 0, 4>::put("BTH transport version", &self.tver, &mut bytes)?;
        At::<2>::put("BTH pkey", &self.pkey, &mut bytes)?;
        Bits::<4, 7, 1>::put("BTH fecn", &self.fecn, &mut bytes)?;
        Bits::<4, 6, 1>::put("BTH becn", &self.becn, &mut bytes)?;
        Bits::<5, 0, 24>::put("BTH destination QP", &self.dest_qp, &mut bytes)?;
        Bits::<8, 7, 1>::put("BTH ack request", &self.ack_request, &mut bytes)?;
        Bits::<9, 0, 24>::put("BTH PSN", &self.psn, &mut bytes)?;
        put("BTH", &bytes, out)
    }
}

impl Opcode {
    /// The opcode with this value.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a reserved value, and for the transport RD.
    #[inline]
    pub const fn from_value(value: u8) -> Result<Opcode> {
        match Opcode::known(value) {
            Some(opcode) => Ok(opcode),
            None => Err(Error::Unsupported {
                what: "BTH opcode",
                got: value as u64,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
