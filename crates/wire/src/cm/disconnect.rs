//! DREQ and DREP: the end of a connection.

use core::fmt;

use super::PrivateData;
use super::body::BODY_LEN;
use crate::Qpn;
use crate::bytes::{At, Bits, layout};

layout! {
    /// Request for communication release (IBTA 12.6.10).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct DreqRepr("DREQ", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// The receiver's queue pair (or end-to-end context).
        pub remote_qpn: Qpn = Bits<8, 0, 24>,
        /// Private data.
        pub private_data: PrivateData<220> = At<12>,
    }
}

impl fmt::Display for DreqRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DREQ id 0x{:08x} -> 0x{:08x} to qp {}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn
        )
    }
}

layout! {
    /// Reply to a request for communication release (IBTA 12.6.11).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct DrepRepr("DREP", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// Private data.
        pub private_data: PrivateData<224> = At<8>,
    }
}

impl fmt::Display for DrepRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DREP id 0x{:08x} -> 0x{:08x}",
            self.local_comm_id, self.remote_comm_id
        )
    }
}
