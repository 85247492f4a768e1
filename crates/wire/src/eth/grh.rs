//! The global route header, as in receive buffers of datagrams.

use crate::bytes::{Builder, Fields, fit, header};
use crate::{Gid, Result};

/// Global route header (IBTA 8.3), which has the layout of an IPv6 header.
///
/// A UD receive buffer begins with 40 bytes for it. For RoCEv2 over IPv4 the last 20 of them hold
/// the IPv4 header instead (IBTA annex A17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrhRepr {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of the payload after this header, in bytes.
    pub payload_len: u16,
    /// Protocol of the payload: 0x1B for IBA transport, 17 for UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

header!(GrhRepr, "GRH", 40);

impl GrhRepr {
    /// IP version in the highest four bits.
    const VERSION: u32 = 6 << 28;

    fn from_fields(f: Fields<'_, 40>) -> Self {
        let word = f.u32::<0>();
        GrhRepr {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xF_FFFF,
            payload_len: f.u16::<4>(),
            next_header: f.u8::<6>(),
            hop_limit: f.u8::<7>(),
            sgid: Gid(f.array::<8, 16>()),
            dgid: Gid(f.array::<24, 16>()),
        }
    }

    fn build(&self, b: &mut Builder<40>) -> Result<()> {
        let flow_label = fit("GRH flow label", self.flow_label, 20)?;
        b.u32::<0>(Self::VERSION | u32::from(self.traffic_class) << 20 | flow_label)
            .u16::<4>(self.payload_len)
            .u8::<6>(self.next_header)
            .u8::<7>(self.hop_limit)
            .array::<8, 16>(&self.sgid.0)
            .array::<24, 16>(&self.dgid.0);
        Ok(())
    }
}
