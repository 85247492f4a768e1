//! SIDR REQ and SIDR REP: resolve a service id to the queue pair and queue key of a datagram
//! service.

use core::fmt;

use super::body::{BODY_LEN, Info, VendorId};
use super::{AdditionalInfo, Ece, PrivateData, SidrStatus};
use crate::bytes::{At, Bits, layout};
use crate::{PKey, QKey, Qpn, ServiceId};

layout! {
    /// Service id resolution request (IBTA 12.11.1).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct SidrReqRepr("SIDR REQ", BODY_LEN) {
        /// The sender's id of this request.
        pub request_id: u32 = At<0>,
        /// Partition.
        pub pkey: PKey = At<4>,
        /// The requested service.
        pub service_id: ServiceId = At<8>,
        /// Private data.
        pub private_data: PrivateData<216> = At<16>,
    }
}

impl fmt::Display for SidrReqRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR REQ id 0x{:08x} sid {}",
            self.request_id, self.service_id
        )
    }
}

layout! {
    /// Service id resolution response (IBTA 12.11.2).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct SidrRepRepr("SIDR REP", BODY_LEN) {
        /// The id of the answered request.
        pub request_id: u32 = At<0>,
        /// Result of the resolution.
        pub status: SidrStatus = At<4>,
        /// Vendor's options.
        pub ece: Ece = VendorId<11, 6, 7>,
        /// The queue pair of the service.
        pub qpn: Qpn = Bits<8, 0, 24>,
        /// The service.
        pub service_id: ServiceId = At<12>,
        /// The queue pair's key.
        pub qkey: QKey = At<20>,
        /// Additional information, such as the target of a redirect.
        pub additional_info: AdditionalInfo = Info<5, 0, 24>,
        /// Private data.
        pub private_data: PrivateData<136> = At<96>,
    }
}

impl fmt::Display for SidrRepRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR REP id 0x{:08x} sid {}",
            self.request_id, self.service_id
        )?;
        if self.status == SidrStatus::SUCCESS {
            write!(f, " qp {} qkey {}", self.qpn, self.qkey)
        } else {
            write!(f, " status {}", self.status)
        }
    }
}
