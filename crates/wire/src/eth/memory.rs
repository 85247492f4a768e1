//! Headers that address remote memory: RETH, FETH, IETH.

use crate::Result;
use crate::bytes::{Builder, Fields, header};

/// RDMA extended transport header (IBTA 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RethRepr {
    /// Virtual address in the responder's memory region.
    pub va: u64,
    /// The region's remote key.
    pub rkey: u32,
    /// Length of the whole operation, in bytes.
    pub dma_len: u32,
}

header!(RethRepr, "RETH", 16);

impl RethRepr {
    fn from_fields(f: Fields<'_, 16>) -> Self {
        RethRepr {
            va: f.u64::<0>(),
            rkey: f.u32::<8>(),
            dma_len: f.u32::<12>(),
        }
    }

    fn build(&self, b: &mut Builder<16>) -> Result<()> {
        b.u64::<0>(self.va)
            .u32::<8>(self.rkey)
            .u32::<12>(self.dma_len);
        Ok(())
    }
}

/// Flush extended transport header (IBTA annex A19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FethRepr {
    /// Requested placement types, four bits: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity, two bits: 0 the range of the RETH, 1 the whole region.
    pub selectivity: u8,
}

header!(FethRepr, "FETH", 4);

impl FethRepr {
    fn from_fields(f: Fields<'_, 4>) -> Self {
        FethRepr {
            placement: f.bits::<3, 0, 4>(),
            selectivity: f.bits::<3, 4, 2>(),
        }
    }

    fn build(&self, b: &mut Builder<4>) -> Result<()> {
        b.bits::<3, 0, 4>("FETH placement", self.placement)?
            .bits::<3, 4, 2>("FETH selectivity", self.selectivity)?;
        Ok(())
    }
}

/// Invalidate extended transport header (IBTA 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IethRepr {
    /// The remote key to invalidate at the responder.
    pub rkey: u32,
}

header!(IethRepr, "IETH", 4);

impl IethRepr {
    fn from_fields(f: Fields<'_, 4>) -> Self {
        IethRepr { rkey: f.u32::<0>() }
    }

    fn build(&self, b: &mut Builder<4>) -> Result<()> {
        b.u32::<0>(self.rkey);
        Ok(())
    }
}
