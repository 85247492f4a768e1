//! REP: accepts a connection.

use core::fmt;

use super::body::{Body, BodyBuilder, Format};
use super::{Ece, PrivateData};
use crate::{Psn, QKey, Qpn, Result};

/// Reply to a request for communication (IBTA 12.6.8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Queue key, only for reliable datagrams.
    pub local_qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Vendor's options.
    pub ece: Ece,
    /// End-to-end context of reliable datagrams, or queue pair of the receiving end of XRC, 24 bits.
    pub local_eecn: u32,
    /// First PSN that the receiver shall send.
    pub starting_psn: Psn,
    /// Maximum number of concurrent RDMA reads and atomics that the sender serves.
    pub responder_resources: u8,
    /// Maximum number of outstanding RDMA reads and atomics of the sender.
    pub initiator_depth: u8,
    /// The longest time that the sender's device takes to acknowledge, exponent of 4.096 µs, five
    /// bits.
    pub target_ack_delay: u8,
    /// Alternate path: 0 accepted, 1 not supported, 2 rejected; two bits.
    pub failover_accepted: u8,
    /// Whether the sender's device does end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// Retries after RNR NAK, three bits; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Private data.
    pub private_data: PrivateData<196>,
}

impl Format for RepRepr {
    fn read(f: Body<'_>, ece_options: u32) -> Self {
        RepRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            local_qkey: QKey(f.u32::<8>()),
            local_qpn: Qpn::new(f.u24::<12>()),
            ece: Ece {
                vendor_id: crate::bytes::be24([f.u8::<15>(), f.u8::<19>(), f.u8::<23>()]),
                options: ece_options,
            },
            local_eecn: f.u24::<16>(),
            starting_psn: Psn::new(f.u24::<20>()),
            responder_resources: f.u8::<24>(),
            initiator_depth: f.u8::<25>(),
            target_ack_delay: f.bits::<26, 3, 5>(),
            failover_accepted: f.bits::<26, 1, 2>(),
            end_to_end_flow_control: f.bit::<26, 0>(),
            rnr_retry_count: f.bits::<27, 5, 3>(),
            srq: f.bit::<27, 4>(),
            local_ca_guid: f.u64::<28>(),
            private_data: PrivateData::new(f.array::<36, 196>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        let vendor_id = crate::bytes::fit("ECE vendor id", self.ece.vendor_id, 24)?;
        let [vendor_high, vendor_middle, vendor_low] = crate::bytes::to_be24(vendor_id);
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .u32::<8>(self.local_qkey.0)
            .u24::<12>("local QPN", self.local_qpn.value())?
            .u8::<15>(vendor_high)
            .u24::<16>("local EECN", self.local_eecn)?
            .u8::<19>(vendor_middle)
            .u24::<20>("starting PSN", self.starting_psn.value())?
            .u8::<23>(vendor_low)
            .u8::<24>(self.responder_resources)
            .u8::<25>(self.initiator_depth)
            .bits::<26, 3, 5>("target ACK delay", self.target_ack_delay)?
            .bits::<26, 1, 2>("failover accepted", self.failover_accepted)?
            .bit::<26, 0>(self.end_to_end_flow_control)
            .bits::<27, 5, 3>("RNR retry count", self.rnr_retry_count)?
            .bit::<27, 4>(self.srq)
            .u64::<28>(self.local_ca_guid)
            .array::<36, 196>(self.private_data.as_array());
        Ok(())
    }
}

impl fmt::Display for RepRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REP id 0x{:08x} -> 0x{:08x} from qp {} psn {}",
            self.local_comm_id, self.remote_comm_id, self.local_qpn, self.starting_psn
        )
    }
}
