//! Management datagrams (IBTA 13.4): the common header and the RMPP header.

mod rmpp;

use core::fmt;

pub use rmpp::{RmppFlags, RmppHeader, RmppStatus, RmppType};

use crate::bytes::{At, header, wrappers};
use crate::{Error, Result};

/// Length of every management datagram, in bytes.
pub const MAD_LEN: usize = 256;

/// The only defined base version.
pub const BASE_VERSION: u8 = 1;

/// A management class (IBTA 13.4.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet administration.
    pub const SUBN_ADM: MgmtClass = MgmtClass(0x03);
    /// Communication management: connections.
    pub const CM: MgmtClass = MgmtClass(0x07);
}

impl fmt::Debug for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MgmtClass(0x{:02x})", self.0)
    }
}

/// A method (IBTA 13.4.5). The highest bit marks a response.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method(pub u8);

impl Method {
    /// Get().
    pub const GET: Method = Method(0x01);
    /// Set().
    pub const SET: Method = Method(0x02);
    /// Send(): a datagram without a response of its own method. All CM messages use it.
    pub const SEND: Method = Method(0x03);
    /// Report().
    pub const REPORT: Method = Method(0x06);
    /// SubnAdmGetTable(), only in subnet administration (IBTA 15.2.2).
    pub const GET_TABLE: Method = Method(0x12);
    /// SubnAdmDelete(), only in subnet administration.
    pub const DELETE: Method = Method(0x15);
    /// GetResp().
    pub const GET_RESP: Method = Method(0x81);
    /// SubnAdmGetTableResp().
    pub const GET_TABLE_RESP: Method = Method(0x92);

    /// True for responses.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method(0x{:02x})", self.0)
    }
}

wrappers!(MgmtClass(u8), Method(u8));

header! {
    /// The header of every management datagram (IBTA 13.4.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MadHeaderRepr("MAD header", 24) {
        /// Base version, [`BASE_VERSION`].
        pub base_version: u8 = At<0>,
        /// Management class.
        pub mgmt_class: MgmtClass = At<1>,
        /// Version of the class's own format.
        pub class_version: u8 = At<2>,
        /// Method.
        pub method: Method = At<3>,
        /// Status, zero in requests.
        pub status: u16 = At<4>,
        /// Use depends on the class.
        pub class_specific: u16 = At<6>,
        /// Transaction id, which a response repeats.
        pub tid: u64 = At<8>,
        /// Attribute id; in connection management, the message type.
        pub attribute_id: u16 = At<16>,
        /// Attribute modifier.
        pub attribute_modifier: u32 = At<20>,
    }
}

/// A checked view of a whole management datagram: header and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadPacket<'a> {
    bytes: &'a [u8; MAD_LEN],
}

impl<'a> MadPacket<'a> {
    /// Wraps `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] and [`Error::Malformed`] if they are not [`MAD_LEN`] bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<MadPacket<'a>> {
        let head = crate::bytes::head("MAD", bytes)?;
        if bytes.len() > MAD_LEN {
            return Err(Error::Malformed {
                what: "MAD length",
                expected: "256 bytes",
                got: bytes.len() as u64,
            });
        }
        Ok(MadPacket { bytes: head })
    }

    /// The header.
    pub fn header(&self) -> MadHeaderRepr {
        let (header, _) = self.split();
        MadHeaderRepr::from_bytes(header)
    }

    /// The data after the header, in the class's own format.
    pub fn data(&self) -> &'a [u8; DATA_LEN] {
        self.split().1
    }

    fn split(&self) -> (&'a [u8; MadHeaderRepr::LEN], &'a [u8; DATA_LEN]) {
        const ZEROS: (&[u8; MadHeaderRepr::LEN], &[u8; DATA_LEN]) =
            (&[0; MadHeaderRepr::LEN], &[0; DATA_LEN]);
        // The two halves make up the whole array, so the fallback is unreachable.
        self.bytes
            .split_first_chunk()
            .and_then(|(header, data)| Some((header, data.first_chunk()?)))
            .unwrap_or(ZEROS)
    }
}

/// Length of the data after the header, in bytes.
pub const DATA_LEN: usize = MAD_LEN - MadHeaderRepr::LEN;
