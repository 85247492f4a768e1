//! MRA: confirms a message whose answer will take longer.

use core::fmt;

use super::PrivateData;
use super::body::BODY_LEN;
use crate::bytes::{At, Bits, layout, narrow};
use crate::timer::cm_timeout_us;

/// The message that an MRA confirms, two bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MraMessage {
    /// REQ.
    #[default]
    Req = 0,
    /// REP.
    Rep = 1,
    /// LAP.
    Lap = 2,
    /// Reserved.
    Reserved = 3,
}

narrow! {
    MraMessage: |bits| match bits {
        0 => MraMessage::Req,
        1 => MraMessage::Rep,
        2 => MraMessage::Lap,
        _ => MraMessage::Reserved,
    }, |message| message as u32;
}

layout! {
    /// Message receipt acknowledgement (IBTA 12.6.6).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct MraRepr("MRA", BODY_LEN) {
        /// The sender's communication id; zero if it has none yet.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication id.
        pub remote_comm_id: u32 = At<4>,
        /// The confirmed message.
        pub message: MraMessage = Bits<8, 6, 2>,
        /// Time until its answer, exponent of 4.096 µs, five bits.
        pub service_timeout: u8 = Bits<9, 3, 5>,
        /// Private data.
        pub private_data: PrivateData<222> = At<10>,
    }
}

impl fmt::Display for MraRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = match self.message {
            MraMessage::Req => "REQ",
            MraMessage::Rep => "REP",
            MraMessage::Lap => "LAP",
            MraMessage::Reserved => "reserved message",
        };
        write!(
            f,
            "MRA id 0x{:08x} -> 0x{:08x} of {message}, answer within {} ms",
            self.local_comm_id,
            self.remote_comm_id,
            cm_timeout_us(self.service_timeout) / 1000
        )
    }
}
