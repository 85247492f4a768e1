//! The global route header, as in receive buffers of datagrams.

use crate::bytes::{At, Bits, Place, header};
use crate::{Gid, Result};

header! {
    /// Global route header (IBTA 8.3), which has the layout of an IPv6 header.
    ///
    /// A UD receive buffer begins with 40 bytes for it. For RoCEv2 over IPv4 the last 20 of them hold
    /// the IPv4 header instead (IBTA annex A17).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GrhRepr("GRH", 40) {
        /// Traffic class.
        pub traffic_class: u8 = AfterVersion,
        /// Flow label, 20 bits.
        pub flow_label: u32 = Bits<1, 0, 20>,
        /// Length of the payload after this header, in bytes.
        pub payload_len: u16 = At<4>,
        /// Protocol of the payload: 0x1B for IBA transport, 17 for UDP.
        pub next_header: u8 = At<6>,
        /// Hop limit.
        pub hop_limit: u8 = At<7>,
        /// Source.
        pub sgid: Gid = At<8>,
        /// Destination.
        pub dgid: Gid = At<24>,
    }
}

/// The eight bits after the IP version, which is 6.
struct AfterVersion;

impl Place<u8> for AfterVersion {
    const END: usize = 2;

    #[inline]
    fn get(header: &[u8]) -> u8 {
        Bits::<0, 4, 8>::get(header)
    }

    #[inline]
    fn put(what: &'static str, value: &u8, header: &mut [u8]) -> Result<()> {
        Bits::<0, 4, 4>::put("GRH version", &6u8, header)?;
        Bits::<0, 4, 8>::put(what, value, header)
    }
}
