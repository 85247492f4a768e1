//! REP: accepts a connection.

use core::fmt;

use super::body::{BODY_LEN, VendorId};
use super::{Ece, PrivateData};
use crate::bytes::{At, Bits, layout};
use crate::{Psn, QKey, Qpn};

layout! {
    /// Reply to a request for communication (IBTA 12.6.8).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct RepRepr("REP", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// Queue key, only for reliable datagrams.
        pub local_qkey: QKey = At<8>,
        /// The sender's queue pair.
        pub local_qpn: Qpn = Bits<12, 0, 24>,
        /// Vendor's options.
        pub ece: Ece = VendorId<15, 19, 23>,
        /// End-to-end context of reliable datagrams, or queue pair of the receiving end of XRC, 24 bits.
        pub local_eecn: u32 = Bits<16, 0, 24>,
        /// First PSN that the receiver shall send.
        pub starting_psn: Psn = Bits<20, 0, 24>,
        /// Maximum number of concurrent RDMA reads and atomics that the sender serves.
        pub responder_resources: u8 = At<24>,
        /// Maximum number of outstanding RDMA reads and atomics of the sender.
        pub initiator_depth: u8 = At<25>,
        /// The longest time that the sender's device takes to acknowledge, exponent of 4.096 µs, five
        /// bits.
        pub target_ack_delay: u8 = Bits<26, 3, 5>,
        /// Alternate path: 0 accepted, 1 not supported, 2 rejected; two bits.
        pub failover_accepted: u8 = Bits<26, 1, 2>,
        /// Whether the sender's device does end-to-end flow control.
        pub end_to_end_flow_control: bool = Bits<26, 0, 1>,
        /// Retries after RNR NAK, three bits; 7 means unlimited.
        pub rnr_retry_count: u8 = Bits<27, 5, 3>,
        /// Whether the sender's queue pair uses a shared receive queue.
        pub srq: bool = Bits<27, 4, 1>,
        /// GUID of the sender's channel adapter.
        pub local_ca_guid: u64 = At<28>,
        /// Private data.
        pub private_data: PrivateData<196> = At<36>,
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
