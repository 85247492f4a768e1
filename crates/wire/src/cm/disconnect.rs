//! DREQ and DREP: the end of a connection.

use core::fmt;

use super::PrivateData;
use super::body::{Body, BodyBuilder, Format};
use crate::{Qpn, Result};

/// Request for communication release (IBTA 12.6.10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DreqRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair (or end-to-end context).
    pub remote_qpn: Qpn,
    /// Private data.
    pub private_data: PrivateData<220>,
}

impl Format for DreqRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        DreqRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            remote_qpn: Qpn::new(f.u24::<8>()),
            private_data: PrivateData::new(f.array::<12, 220>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .u24::<8>("remote QPN", self.remote_qpn.value())?
            .array::<12, 220>(self.private_data.as_array());
        Ok(())
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

/// Reply to a request for communication release (IBTA 12.6.11).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrepRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Private data.
    pub private_data: PrivateData<224>,
}

impl Format for DrepRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        DrepRepr {
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

impl fmt::Display for DrepRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DREP id 0x{:08x} -> 0x{:08x}",
            self.local_comm_id, self.remote_comm_id
        )
    }
}
