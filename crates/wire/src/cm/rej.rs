//! REJ: rejects a connection with a reason.

use core::fmt;

use super::body::{BODY_LEN, Info};
use super::{AdditionalInfo, PrivateData, RejectReason};
use crate::bytes::{At, Bits, layout, narrow};

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

narrow! {
    RejMessage: |bits| match bits {
        0 => RejMessage::Req,
        1 => RejMessage::Rep,
        2 => RejMessage::Other,
        _ => RejMessage::Reserved,
    }, |message| message as u32;
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

layout! {
    /// Reject (IBTA 12.6.7).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct RejRepr("REJ", BODY_LEN) {
        /// The sender's communication id; zero if it has none.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// The rejected message.
        pub message: RejMessage = Bits<8, 6, 2>,
        /// The reason.
        pub reason: RejectReason = At<10>,
        /// Additional reject information; its meaning depends on the reason (IBTA 12.6.7.2). Its length
        /// has seven bits.
        pub additional_info: AdditionalInfo = Info<9, 1, 12>,
        /// Private data.
        pub private_data: PrivateData<148> = At<84>,
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
