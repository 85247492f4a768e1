//! MRA: confirms a message whose answer will take longer.

use core::fmt;

use super::PrivateData;
use super::body::{Body, BodyBuilder, Format};
use crate::Result;
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

impl MraMessage {
    const fn from_bits(bits: u8) -> MraMessage {
        match bits & 3 {
            0 => MraMessage::Req,
            1 => MraMessage::Rep,
            2 => MraMessage::Lap,
            _ => MraMessage::Reserved,
        }
    }
}

/// Message receipt acknowledgement (IBTA 12.6.6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MraRepr {
    /// The sender's communication id; zero if it has none yet.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The confirmed message.
    pub message: MraMessage,
    /// Time until its answer, exponent of 4.096 µs, five bits.
    pub service_timeout: u8,
    /// Private data.
    pub private_data: PrivateData<222>,
}

impl Format for MraRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        MraRepr {
            local_comm_id: f.u32::<0>(),
            remote_comm_id: f.u32::<4>(),
            message: MraMessage::from_bits(f.bits::<8, 6, 2>()),
            service_timeout: f.bits::<9, 3, 5>(),
            private_data: PrivateData::new(f.array::<10, 222>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u32::<4>(self.remote_comm_id)
            .bits::<8, 6, 2>("message MRAed", self.message as u8)?
            .bits::<9, 3, 5>("service timeout", self.service_timeout)?
            .array::<10, 222>(self.private_data.as_array());
        Ok(())
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
