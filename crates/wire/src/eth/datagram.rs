//! DETH, XRCETH and immediate data.

use crate::bytes::{At, Bits, header, parse_and_emit, wrappers};
use crate::{QKey, Qpn};

header! {
    /// Datagram extended transport header (IBTA 9.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DethRepr("DETH", 8) {
        /// The destination's queue key.
        pub qkey: QKey = At<0>,
        /// The sender's queue pair.
        pub src_qp: Qpn = Bits<5, 0, 24>,
    }
}

header! {
    /// XRC extended transport header (IBTA annex A14).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct XrcEthRepr("XRCETH", 4) {
        /// The shared receive queue that the request is for, 24 bits.
        pub srqn: u32 = Bits<1, 0, 24>,
    }
}

/// Immediate data (IBTA 9.3): four bytes in network order, as in the verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImmDtRepr(pub [u8; 4]);

wrappers!(ImmDtRepr([u8; 4]));
parse_and_emit!(ImmDtRepr, "ImmDt", 4);
