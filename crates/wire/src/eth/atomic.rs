//! AtomicETH and AtomicAckETH.

use crate::Result;
use crate::bytes::{Builder, Fields, header};

/// Atomic extended transport header (IBTA 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEthRepr {
    /// Virtual address of the eight bytes in the responder's memory region.
    pub va: u64,
    /// The region's remote key.
    pub rkey: u32,
    /// The value that compare and swap stores, or that fetch and add adds.
    pub swap_or_add: u64,
    /// The value that compare and swap compares with; unused by fetch and add.
    pub compare: u64,
}

header!(AtomicEthRepr, "AtomicETH", 28);

impl AtomicEthRepr {
    fn from_fields(f: Fields<'_, 28>) -> Self {
        AtomicEthRepr {
            va: f.u64::<0>(),
            rkey: f.u32::<8>(),
            swap_or_add: f.u64::<12>(),
            compare: f.u64::<20>(),
        }
    }

    fn build(&self, b: &mut Builder<28>) -> Result<()> {
        b.u64::<0>(self.va)
            .u32::<8>(self.rkey)
            .u64::<12>(self.swap_or_add)
            .u64::<20>(self.compare);
        Ok(())
    }
}

/// Atomic acknowledge extended transport header (IBTA 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicAckEthRepr {
    /// The value in memory before the operation.
    pub original: u64,
}

header!(AtomicAckEthRepr, "AtomicAckETH", 8);

impl AtomicAckEthRepr {
    fn from_fields(f: Fields<'_, 8>) -> Self {
        AtomicAckEthRepr {
            original: f.u64::<0>(),
        }
    }

    fn build(&self, b: &mut Builder<8>) -> Result<()> {
        b.u64::<0>(self.original);
        Ok(())
    }
}
