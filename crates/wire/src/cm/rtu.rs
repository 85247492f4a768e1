//! RTU: ready to use, the end of the handshake.

use core::fmt;

use super::PrivateData;
use super::body::{Body, BodyBuilder, Format};
use crate::Result;

/// Ready to use (IBTA 12.6.9).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RtuRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Private data.
    pub private_data: PrivateData<224>,
}

impl Format for RtuRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        RtuRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            private_data: PrivateData::new(f.array::<8, 224>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .array::<8, 224>(self.private_data.as_array());
        Ok(())
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
