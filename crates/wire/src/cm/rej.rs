//! REJ: rejects a connection with a reason.

use core::fmt;

use super::body::{Body, BodyBuilder, Format};
use super::{AdditionalInfo, PrivateData, RejectReason};
use crate::Result;

/// The message that a REJ answers, two bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RejMessage {
    /// REQ.
    #[default]
    Req = 0,
    /// REP.
    Rep = 1,
    /// None: a timeout, or an unrecognized message.
    Other = 2,
    /// Reserved.
    Reserved = 3,
}

impl RejMessage {
    const fn from_bits(bits: u8) -> RejMessage {
        match bits & 3 {
            0 => RejMessage::Req,
            1 => RejMessage::Rep,
            2 => RejMessage::Other,
            _ => RejMessage::Reserved,
        }
    }
}

impl fmt::Display for RejMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RejMessage::Req => "REQ",
            RejMessage::Rep => "REP",
            RejMessage::Other => "no message",
            RejMessage::Reserved => "reserved message",
        })
    }
}

/// Reject (IBTA 12.6.7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RejRepr {
    /// The sender's communication id; zero if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The rejected message.
    pub message: RejMessage,
    /// The reason.
    pub reason: RejectReason,
    /// Additional reject information; its meaning depends on the reason (IBTA 12.6.7.2). Its length
    /// has seven bits.
    pub additional_info: AdditionalInfo,
    /// Private data.
    pub private_data: PrivateData<148>,
}

impl Format for RejRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        RejRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            message: RejMessage::from_bits(f.bits::<8, 6, 2>()),
            reason: RejectReason(f.u16::<10>()),
            additional_info: AdditionalInfo {
                len: f.bits::<9, 1, 7>(),
                bytes: f.array::<12, 72>(),
            },
            private_data: PrivateData::new(f.array::<84, 148>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .bits::<8, 6, 2>("message rejected", self.message as u8)?
            .bits::<9, 1, 7>("reject information length", self.additional_info.len)?
            .u16::<10>(self.reason.0)
            .array::<12, 72>(&self.additional_info.bytes)
            .array::<84, 148>(self.private_data.as_array());
        Ok(())
    }
}

impl fmt::Display for RejRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REJ id 0x{:08x} -> 0x{:08x} of {}, reason {}",
            self.local_comm_id, self.remote_comm_id, self.message, self.reason
        )
    }
}
