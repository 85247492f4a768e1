//! LAP and APR: loading an alternate path. RoCE does not use them; they are parsed for display and
//! to be answered.

use core::fmt;

use super::body::{Body, BodyBuilder, Format};
use super::reason::codes;
use super::{AdditionalInfo, PathRepr, PrivateData};
use crate::{Qpn, Result};

/// Load alternate path (IBTA 12.8.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LapRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair (or end-to-end context).
    pub remote_qpn: Qpn,
    /// Time within which the receiver must answer, exponent of 4.096 µs, five bits.
    pub remote_cm_response_timeout: u8,
    /// The path to load.
    pub alternate: PathRepr,
    /// Private data.
    pub private_data: PrivateData<168>,
}

impl Format for LapRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        LapRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            remote_qpn: Qpn::new(f.u24::<12>()),
            remote_cm_response_timeout: f.bits::<15, 3, 5>(),
            alternate: PathRepr::from_lap(&f.array::<20, 44>()),
            private_data: PrivateData::new(f.array::<64, 168>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .u24::<12>("remote QPN", self.remote_qpn.value())?
            .bits::<15, 3, 5>(
                "remote CM response timeout",
                self.remote_cm_response_timeout,
            )?
            .array::<20, 44>(&self.alternate.to_lap()?)
            .array::<64, 168>(self.private_data.as_array());
        Ok(())
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

/// Alternate path response (IBTA 12.8.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AprRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Whether the path is loaded.
    pub status: AprStatus,
    /// Additional information; its meaning depends on the status.
    pub additional_info: AdditionalInfo,
    /// Private data.
    pub private_data: PrivateData<148>,
}

impl Format for AprRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        AprRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            status: AprStatus(f.u8::<9>()),
            additional_info: AdditionalInfo {
                len: f.u8::<8>(),
                bytes: f.array::<12, 72>(),
            },
            private_data: PrivateData::new(f.array::<84, 148>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .u8::<8>(self.additional_info.len)
            .u8::<9>(self.status.0)
            .array::<12, 72>(&self.additional_info.bytes)
            .array::<84, 148>(self.private_data.as_array());
        Ok(())
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
