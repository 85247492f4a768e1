//! AETH: acknowledgements, credits and NAKs.

use core::fmt;

use crate::bytes::{At, Bits, Value, header};
use crate::timer::rnr_timer_us;
use crate::{Error, Result};

/// The credit code for unlimited credits (IBTA 9.7.7.2). Queue pairs with a shared receive queue or
/// without end-to-end flow control send it.
pub const CREDITS_UNLIMITED: u8 = 31;

header! {
    /// Acknowledge extended transport header (IBTA 9.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AethRepr("AETH", 4) {
        /// Acknowledgement or NAK.
        pub syndrome: Syndrome = At<0>,
        /// Message sequence number, 24 bits: the number of messages that the responder has completed.
        pub msn: u32 = Bits<1, 0, 24>,
    }
}

/// The content of an AETH (IBTA 9.7.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// Credit code, five bits (IBTA 9.7.7.2).
        credits: u8,
    },
    /// The responder has no receive request posted: try again later.
    RnrNak {
        /// Timer code, five bits; see [`rnr_timer_us`].
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A reserved value, the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// The meaning of a syndrome byte.
    pub const fn from_value(value: u8) -> Syndrome {
        let code = value & 0x1F;
        match value >> 5 {
            0 => Syndrome::Ack { credits: code },
            1 => Syndrome::RnrNak { timer: code },
            3 => match NakCode::from_value(code) {
                Some(code) => Syndrome::Nak(code),
                None => Syndrome::Reserved(value),
            },
            _ => Syndrome::Reserved(value),
        }
    }

    /// The syndrome byte.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a credit or timer code above 31.
    pub const fn to_value(self) -> Result<u8> {
        match self {
            Syndrome::Ack { credits } => five_bits("AETH credits", credits, 0x00),
            Syndrome::RnrNak { timer } => five_bits("AETH RNR timer", timer, 0x20),
            Syndrome::Nak(code) => Ok(0x60 | code as u8),
            Syndrome::Reserved(value) => Ok(value),
        }
    }
}

impl Value for Syndrome {
    const LEN: usize = 1;

    fn read(bytes: &[u8]) -> Self {
        Syndrome::from_value(Value::read(bytes))
    }

    fn write(&self, what: &'static str, bytes: &mut [u8]) -> Result<()> {
        self.to_value()?.write(what, bytes)
    }
}

const fn five_bits(what: &'static str, code: u8, class: u8) -> Result<u8> {
    if code > 0x1F {
        return Err(Error::OutOfRange {
            what,
            max: 0x1F,
            got: code as u64,
        });
    }
    Ok(class | code)
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Syndrome::Ack { .. } => f.write_str("ACK"),
            Syndrome::RnrNak { timer } => write!(f, "RNR NAK wait {} us", rnr_timer_us(timer)),
            Syndrome::Nak(code) => write!(f, "NAK {code}"),
            Syndrome::Reserved(value) => write!(f, "reserved syndrome 0x{value:02x}"),
        }
    }
}

/// Why a request was refused (IBTA 9.7.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before this one is missing: retransmit from the given PSN.
    PsnSequenceError = 0,
    /// The request is invalid: unsupported, too long, or out of order within its message.
    InvalidRequest = 1,
    /// The key, range or access rights do not permit the request.
    RemoteAccessError = 2,
    /// The responder failed to execute the request.
    RemoteOperationalError = 3,
    /// A reliable datagram's request was invalid.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// The code with this value; `None` for a reserved one.
    pub const fn from_value(value: u8) -> Option<NakCode> {
        Some(match value {
            0 => NakCode::PsnSequenceError,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccessError,
            3 => NakCode::RemoteOperationalError,
            4 => NakCode::InvalidRdRequest,
            _ => return None,
        })
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            NakCode::PsnSequenceError => "PSN sequence error",
            NakCode::InvalidRequest => "invalid request",
            NakCode::RemoteAccessError => "remote access error",
            NakCode::RemoteOperationalError => "remote operational error",
            NakCode::InvalidRdRequest => "invalid RD request",
        })
    }
}
