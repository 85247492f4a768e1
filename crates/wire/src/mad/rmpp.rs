//! The reliable multi-packet protocol (RMPP, IBTA 13.6): its packet header.

use core::fmt;

use crate::bytes::{At, Bits, header, narrow, wrappers};

header! {
    /// The RMPP header (IBTA 13.6.2), after the MAD header in classes that use the protocol.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RmppHeader("RMPP header", 12) {
        /// Version, [`RmppHeader::VERSION`].
        pub version: u8 = At<0>,
        /// Type of the packet.
        pub rmpp_type: RmppType = At<1>,
        /// Response time, exponent of 4.096 µs, five bits; 31 if unspecified.
        pub response_time: u8 = Bits<2, 3, 5>,
        /// Flags.
        pub flags: RmppFlags = Bits<2, 0, 3>,
        /// Status.
        pub status: RmppStatus = At<3>,
        /// Segment number in data and ACK.
        pub data1: u32 = At<4>,
        /// Payload length in data; the last segment of the new window in ACK.
        pub data2: u32 = At<8>,
    }
}

impl RmppHeader {
    /// The only defined version.
    pub const VERSION: u8 = 1;
    /// The value for an unspecified response time.
    pub const NO_RESPONSE_TIME: u8 = 31;

    /// The header of a packet that does not use the protocol: all zero.
    pub const INACTIVE: RmppHeader = RmppHeader {
        version: 0,
        rmpp_type: RmppType(0),
        response_time: 0,
        flags: RmppFlags::empty(),
        status: RmppStatus(0),
        data1: 0,
        data2: 0,
    };
}

wrappers!(RmppType(u8), RmppStatus(u8));
narrow! {
    RmppFlags: |bits| RmppFlags::from_bits_retain(bits as u8), |flags: RmppFlags| flags.bits().into();
}

/// The type of a packet (IBTA 13.6.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RmppType(pub u8);

impl RmppType {
    /// A segment of data.
    pub const DATA: RmppType = RmppType(1);
    /// An acknowledgement.
    pub const ACK: RmppType = RmppType(2);
    /// The sender stops the transfer because it lacks resources.
    pub const STOP: RmppType = RmppType(3);
    /// The sender aborts the transfer.
    pub const ABORT: RmppType = RmppType(4);
}

impl fmt::Debug for RmppType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RmppType({})", self.0)
    }
}

bitflags::bitflags! {
    /// The flags of a packet (IBTA 13.6.2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RmppFlags: u8 {
        /// The packet uses the protocol.
        const ACTIVE = 1;
        /// The first segment.
        const FIRST = 2;
        /// The last segment.
        const LAST = 4;
    }
}

/// Why a transfer was stopped or aborted (IBTA 13.6.2.2, table 60).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RmppStatus(pub u8);

#[allow(missing_docs, reason = "each is printed in words below")]
impl RmppStatus {
    pub const NORMAL: RmppStatus = RmppStatus(0);
    pub const RESOURCES_EXHAUSTED: RmppStatus = RmppStatus(1);
    pub const TOTAL_TIME_TOO_LONG: RmppStatus = RmppStatus(118);
    pub const INCONSISTENT_LAST_AND_PAYLOAD_LENGTH: RmppStatus = RmppStatus(119);
    pub const INCONSISTENT_FIRST_AND_SEGMENT_NUMBER: RmppStatus = RmppStatus(120);
    pub const BAD_TYPE: RmppStatus = RmppStatus(121);
    pub const NEW_WINDOW_LAST_TOO_SMALL: RmppStatus = RmppStatus(122);
    pub const SEGMENT_NUMBER_TOO_BIG: RmppStatus = RmppStatus(123);
    pub const ILLEGAL_STATUS: RmppStatus = RmppStatus(124);
    pub const UNSUPPORTED_VERSION: RmppStatus = RmppStatus(125);
    pub const TOO_MANY_RETRIES: RmppStatus = RmppStatus(126);
    pub const UNSPECIFIED: RmppStatus = RmppStatus(127);
}

impl fmt::Display for RmppStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match *self {
            Self::NORMAL => "normal",
            Self::RESOURCES_EXHAUSTED => "resources exhausted",
            Self::TOTAL_TIME_TOO_LONG => "total time too long",
            Self::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH => "last flag and payload length disagree",
            Self::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER => "first flag and segment number disagree",
            Self::BAD_TYPE => "bad type",
            Self::NEW_WINDOW_LAST_TOO_SMALL => "new window too small",
            Self::SEGMENT_NUMBER_TOO_BIG => "segment number too big",
            Self::ILLEGAL_STATUS => "illegal status",
            Self::UNSUPPORTED_VERSION => "unsupported version",
            Self::TOO_MANY_RETRIES => "too many retries",
            Self::UNSPECIFIED => "unspecified",
            RmppStatus(128..) => "the class's or vendor's own",
            _ => "reserved",
        };
        write!(f, "{} ({words})", self.0)
    }
}

impl fmt::Debug for RmppStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RmppStatus({self})")
    }
}
