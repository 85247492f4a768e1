//! AtomicETH and AtomicAckETH.

use crate::bytes::{At, header};

header! {
    /// Atomic extended transport header (IBTA 9.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AtomicEthRepr("AtomicETH", 28) {
        /// Virtual address of the eight bytes in the responder's memory region.
        pub va: u64 = At<0>,
        /// The region's remote key.
        pub rkey: u32 = At<8>,
        /// The value that compare and swap stores, or that fetch and add adds.
        pub swap_or_add: u64 = At<12>,
        /// The value that compare and swap compares with; unused by fetch and add.
        pub compare: u64 = At<20>,
    }
}

header! {
    /// Atomic acknowledge extended transport header (IBTA 9.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AtomicAckEthRepr("AtomicAckETH", 8) {
        /// The value in memory before the operation.
        pub original: u64 = At<0>,
    }
}
