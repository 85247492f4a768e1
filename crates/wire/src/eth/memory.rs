//! Headers that address remote memory: RETH, FETH, IETH.

use crate::bytes::{At, Bits, header};

header! {
    /// RDMA extended transport header (IBTA 9.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RethRepr("RETH", 16) {
        /// Virtual address in the responder's memory region.
        pub va: u64 = At<0>,
        /// The region's remote key.
        pub rkey: u32 = At<8>,
        /// Length of the whole operation, in bytes.
        pub dma_len: u32 = At<12>,
    }
}

header! {
    /// Flush extended transport header (IBTA annex A19).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FethRepr("FETH", 4) {
        /// Requested placement types, four bits: 1 global visibility, 2 persistence.
        pub placement: u8 = Bits<3, 0, 4>,
        /// Selectivity, two bits: 0 the range of the RETH, 1 the whole region.
        pub selectivity: u8 = Bits<3, 4, 2>,
    }
}

header! {
    /// Invalidate extended transport header (IBTA 9.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct IethRepr("IETH", 4) {
        /// The remote key to invalidate at the responder.
        pub rkey: u32 = At<0>,
    }
}
