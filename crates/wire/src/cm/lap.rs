//! LAP and APR: loading an alternate path. RoCE does not use them; they are parsed for display and
//! to be answered.

use core::fmt;

use super::body::{BODY_LEN, Info};
use super::path::InLap;
use super::reason::codes;
use super::{AdditionalInfo, PathRepr, PrivateData};
use crate::Qpn;
use crate::bytes::{At, Bits, layout};

layout! {
    /// Load alternate path (IBTA 12.8.1).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct LapRepr("LAP", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// The receiver's queue pair (or end-to-end context).
        pub remote_qpn: Qpn = Bits<12, 0, 24>,
        /// Time within which the receiver must answer, exponent of 4.096 µs, five bits.
        pub remote_cm_response_timeout: u8 = Bits<15, 3, 5>,
        /// The path to load.
        pub alternate: PathRepr = InLap<20>,
        /// Private data.
        pub private_data: PrivateData<168> = At<64>,
    }
}

impl fmt::Display for LapRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LAP id 0x{:08x} -> 0x{:08x} to qp {} alternate {}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn, self.alternate
        )
    }
}

codes! {
    /// The status of an alternate path response (IBTA 12.8.2; Linux `enum ib_cm_apr_status`).
    AprStatus(u8):
    /// The path is loaded.
    SUCCESS = 0, "success";
    /// The communication id is not known.
    INVALID_COMM_ID = 1, "invalid communication id";
    /// Alternate paths are not supported.
    UNSUPPORTED = 2, "alternate paths not supported";
    /// The application rejects.
    REJECT = 3, "rejected by the application";
    /// Redirected; see the additional information.
    REDIRECT = 4, "redirected";
    /// The path is the current one.
    IS_CURRENT = 5, "path is the current one";
    /// Queue pair or end-to-end context.
    INVALID_QPN_EECN = 6, "invalid queue pair number or end-to-end context";
    /// LID.
    INVALID_LID = 7, "invalid LID";
    /// GID.
    INVALID_GID = 8, "invalid GID";
    /// Flow label.
    INVALID_FLOW_LABEL = 9, "invalid flow label";
    /// Traffic class.
    INVALID_TRAFFIC_CLASS = 10, "invalid traffic class";
    /// Hop limit.
    INVALID_HOP_LIMIT = 11, "invalid hop limit";
    /// Packet rate.
    INVALID_PACKET_RATE = 12, "invalid packet rate";
    /// Service level.
    INVALID_SL = 13, "invalid service level";
}

layout! {
    /// Alternate path response (IBTA 12.8.2).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct AprRepr("APR", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// Whether the path is loaded.
        pub status: AprStatus = At<9>,
        /// Additional information; its meaning depends on the status.
        pub additional_info: AdditionalInfo = Info<8, 0, 12>,
        /// Private data.
        pub private_data: PrivateData<148> = At<84>,
    }
}

impl fmt::Display for AprRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "APR id 0x{:08x} -> 0x{:08x} status {}",
            self.local_comm_id, self.remote_comm_id, self.status
        )
    }
}
