//! RTU: ready to use, the end of the handshake.

use core::fmt;

use super::PrivateData;
use super::body::BODY_LEN;
use crate::bytes::{At, layout};

layout! {
    /// Ready to use (IBTA 12.6.9).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct RtuRepr("RTU", BODY_LEN) {
        /// The sender's communication id.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// Private data.
        pub private_data: PrivateData<224> = At<8>,
    }
}

impl fmt::Display for RtuRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RTU id 0x{:08x} -> 0x{:08x}",
            self.local_comm_id, self.remote_comm_id
        )
    }
}
