//! REQ: a connection request.

use core::fmt;

use super::body::{BODY_LEN, VendorId};
use super::{Ece, PathMtu, PathRepr, PrivateData};
use crate::bytes::{At, Bits, layout, narrow};
use crate::{PKey, Psn, QKey, Qpn, ServiceId};

/// The transport service of a connection, two bits of a REQ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransportService {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// The service in [`ReqRepr::extended_transport`].
    Extended = 3,
}

/// Number of the extended transport service XRC ([`ReqRepr::extended_transport`]).
pub const EXTENDED_XRC: u8 = 1;

narrow! {
    TransportService: |bits| match bits {
        0 => TransportService::Rc,
        1 => TransportService::Uc,
        2 => TransportService::Rd,
        _ => TransportService::Extended,
    }, |service| service as u32;
}

layout! {
    /// Request for communication (IBTA 12.6.5).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ReqRepr("REQ", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// Vendor's options.
        pub ece: Ece = VendorId<5, 6, 7>,
        /// The requested service.
        pub service_id: ServiceId = At<8>,
        /// GUID of the sender's channel adapter.
        pub local_ca_guid: u64 = At<16>,
        /// Queue key, only for reliable datagrams.
        pub local_qkey: QKey = At<28>,
        /// The sender's queue pair.
        pub local_qpn: Qpn = Bits<32, 0, 24>,
        /// Maximum number of concurrent RDMA reads and atomics that the sender serves.
        pub responder_resources: u8 = At<35>,
        /// End-to-end context of reliable datagrams, 24 bits.
        pub local_eecn: u32 = Bits<36, 0, 24>,
        /// Maximum number of outstanding RDMA reads and atomics of the sender.
        pub initiator_depth: u8 = At<39>,
        /// End-to-end context of reliable datagrams, 24 bits.
        pub remote_eecn: u32 = Bits<40, 0, 24>,
        /// Time within which the receiver must answer, exponent of 4.096 µs, five bits.
        pub remote_cm_response_timeout: u8 = Bits<43, 3, 5>,
        /// Transport service.
        pub transport: TransportService = Bits<43, 1, 2>,
        /// Whether the sender's device does end-to-end flow control.
        pub end_to_end_flow_control: bool = Bits<43, 0, 1>,
        /// First PSN that the receiver shall send.
        pub starting_psn: Psn = Bits<44, 0, 24>,
        /// Time within which the sender will answer, exponent of 4.096 µs, five bits.
        pub local_cm_response_timeout: u8 = Bits<47, 3, 5>,
        /// Transport retries, three bits.
        pub retry_count: u8 = Bits<47, 0, 3>,
        /// Partition.
        pub pkey: PKey = At<48>,
        /// Path MTU, four bits.
        pub path_mtu: PathMtu = Bits<50, 4, 4>,
        /// Whether a reliable datagram channel already exists.
        pub rdc_exists: bool = Bits<50, 3, 1>,
        /// Retries after RNR NAK, three bits; 7 means unlimited.
        pub rnr_retry_count: u8 = Bits<50, 0, 3>,
        /// Maximum number of retransmissions of each message of this exchange, four bits.
        pub max_cm_retries: u8 = Bits<51, 4, 4>,
        /// Whether the sender's queue pair uses a shared receive queue.
        pub srq: bool = Bits<51, 3, 1>,
        /// Transport service if `transport` is [`TransportService::Extended`], three bits: 1 is XRC
        /// ([`EXTENDED_XRC`]).
        pub extended_transport: u8 = Bits<51, 0, 3>,
        /// Primary path.
        pub primary: PathRepr = At<52>,
        /// Alternate path, all zero if there is none.
        pub alternate: PathRepr = At<96>,
        /// Private data.
        pub private_data: PrivateData<92> = At<140>,
    }
}

impl fmt::Display for ReqRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REQ id 0x{:08x} sid {} from qp {} psn {} mtu {} {}",
            self.local_comm_id,
            self.service_id,
            self.local_qpn,
            self.starting_psn,
            self.path_mtu,
            self.primary
        )
    }
}
