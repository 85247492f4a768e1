//! What messages share: their length, and fields in several pieces.

use super::AdditionalInfo;
use crate::Result;
use crate::bytes::{At, Place, fit};
use crate::mad;

/// Length of a message after the MAD header, in bytes.
pub const BODY_LEN: usize = mad::DATA_LEN;

/// Enhanced connection establishment (ECE, IBTA 12.6): a vendor's negotiation of device capabilities,
/// in bits that IBTA reserves. All zero if unused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor that defines the options, 24 bits.
    pub vendor_id: u32,
    /// The vendor's options: `options` of `struct ibv_ece`, `attr_mod` of `struct rdma_ucm_ece`. They
    /// travel as the attribute modifier of the management datagram.
    pub options: u32,
}

/// The vendor of an [`Ece`], whose three bytes are at these offsets, the highest first.
pub(super) struct VendorId<const HIGH: usize, const MIDDLE: usize, const LOW: usize>;

impl<const HIGH: usize, const MIDDLE: usize, const LOW: usize> Place<Ece>
    for VendorId<HIGH, MIDDLE, LOW>
{
    const END: usize = if HIGH > LOW { HIGH } else { LOW } + 1;

    fn get(header: &[u8]) -> Ece {
        Ece {
            vendor_id: u32::from_be_bytes([0, header[HIGH], header[MIDDLE], header[LOW]]),
            options: 0,
        }
    }

    fn put(_: &'static str, value: &Ece, header: &mut [u8]) -> Result<()> {
        let vendor_id = fit("ECE vendor id", value.vendor_id, 24)?;
        [_, header[HIGH], header[MIDDLE], header[LOW]] = vendor_id.to_be_bytes();
        Ok(())
    }
}

/// Additional information: its length is in the bits above the lowest `SHIFT` ones of the byte `LEN`, and its area
/// begins at `AREA`.
pub(super) struct Info<const LEN: usize, const SHIFT: u32, const AREA: usize>;

impl<const LEN: usize, const SHIFT: u32, const AREA: usize> Place<AdditionalInfo>
    for Info<LEN, SHIFT, AREA>
{
    const END: usize = AREA + AdditionalInfo::LEN;

    fn get(header: &[u8]) -> AdditionalInfo {
        AdditionalInfo {
            len: header[LEN] >> SHIFT,
            bytes: At::<AREA>::get(header),
        }
    }

    fn put(what: &'static str, value: &AdditionalInfo, header: &mut [u8]) -> Result<()> {
        let width = 8 - SHIFT;
        header[LEN] |= (fit(what, value.len.into(), width)? as u8) << SHIFT;
        At::<AREA>::put(what, &value.bytes, header)
    }
}
