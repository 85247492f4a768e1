//! A datagram of subnet administration.

use super::status::Status;
use crate::bytes::{At, expect, header};
use crate::mad::{BASE_VERSION, MAD_LEN, MadHeaderRepr, MadPacket, MgmtClass, RmppHeader};
use crate::{Error, Result};

/// Version of the class's format (IBTA 15.2.1).
pub const CLASS_VERSION: u8 = 2;
/// Length of a record, or of a segment of a table, in one datagram, in bytes.
pub const SA_DATA_LEN: usize = 200;

header! {
    /// The headers between the MAD header and the data (IBTA 15.2.1.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SaHeader("SA header", 32) {
        /// The RMPP header.
        pub rmpp: RmppHeader = At<0>,
        /// The subnet manager's key; zero in datagrams of untrusted senders.
        pub sm_key: u64 = At<12>,
        /// Distance between two records of a table, in units of eight bytes.
        pub attribute_offset: u16 = At<20>,
        /// The components of the record that a request specifies.
        pub component_mask: u64 = At<24>,
    }
}

impl SaHeader {
    /// The part of this header that counts toward each segment's payload length, in bytes: RMPP
    /// counts the bytes after its own header.
    pub const IN_PAYLOAD_LEN: usize = Self::LEN - RmppHeader::LEN;
}

/// A checked view of a datagram of subnet administration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaPacket<'a> {
    mad: MadHeaderRepr,
    sa: SaHeader,
    data: &'a [u8; SA_DATA_LEN],
}

impl<'a> SaPacket<'a> {
    /// Wraps `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] and [`Error::Malformed`] if they are not [`MAD_LEN`] bytes;
    /// [`Error::Unsupported`] for another class or version.
    pub fn new_checked(bytes: &'a [u8]) -> Result<SaPacket<'a>> {
        let mad = MadPacket::new_checked(bytes)?;
        let header = mad.header();
        expect("MAD base version", header.base_version, BASE_VERSION)?;
        expect(
            "management class",
            header.mgmt_class.0,
            MgmtClass::SUBN_ADM.0,
        )?;
        expect("SA class version", header.class_version, CLASS_VERSION)?;
        let (head, data) = crate::bytes::split::<{ SaHeader::LEN }>("SA header", mad.data())?;
        Ok(SaPacket {
            mad: header,
            sa: SaHeader::from_bytes(head),
            data: crate::bytes::head("SA data", data)?,
        })
    }

    /// The MAD header.
    pub const fn mad(&self) -> &MadHeaderRepr {
        &self.mad
    }

    /// The header of the class.
    pub const fn sa(&self) -> &SaHeader {
        &self.sa
    }

    /// The status.
    pub const fn status(&self) -> Status {
        Status(self.mad.status)
    }

    /// The record, or the segment of a table.
    pub const fn data(&self) -> &'a [u8; SA_DATA_LEN] {
        self.data
    }

    /// Writes a whole datagram: both headers, and `data` padded with zeros. Replaces the versions
    /// and the class in `mad` with those of subnet administration.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `data` is longer than [`SA_DATA_LEN`], or a header value is wider than its field.
    pub fn emit(mad: &MadHeaderRepr, sa: &SaHeader, data: &[u8]) -> Result<[u8; MAD_LEN]> {
        if data.len() > SA_DATA_LEN {
            return Err(Error::OutOfRange {
                what: "SA data",
                max: SA_DATA_LEN as u64,
                got: data.len() as u64,
            });
        }
        let mut out = [0; MAD_LEN];
        let mad = MadHeaderRepr {
            base_version: BASE_VERSION,
            mgmt_class: MgmtClass::SUBN_ADM,
            class_version: CLASS_VERSION,
            ..*mad
        };
        let at = mad.emit(&mut out)?;
        let rest = out.get_mut(at..).unwrap_or_default();
        let at = sa.emit(rest)?;
        let rest = rest.get_mut(at..).unwrap_or_default();
        crate::bytes::put("SA data", data, rest)?;
        Ok(out)
    }
}
