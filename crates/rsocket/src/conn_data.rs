//! The private data of connection request and reply (`struct rs_conn_data`).

use crate::error::Violation;
use crate::iomap::{scale, unscale};
use crate::sge::Sge;

/// The only supported version.
const VERSION: u8 = 1;
/// The sender is big-endian (`RS_CONN_FLAG_NET`).
const FLAG_BIG_ENDIAN: u8 = 1;
/// The sender supports iomaps (`RS_CONN_FLAG_IOMAP`).
const FLAG_IOMAP: u8 = 1 << 1;

/// The private data that each side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnData {
    /// Whether the sender is big-endian.
    pub big_endian: bool,
    /// Number of messages that it accepts before it grants more.
    pub credits: u16,
    /// Number of entries of its iomap; `None` if it does not support iomaps.
    pub iomaps: Option<u16>,
    /// Its target table, with the number of entries as the length.
    pub table: Sge,
    /// The first part of its receive buffer.
    pub buffer: Sge,
}

impl ConnData {
    /// Bytes of the encoded form.
    pub const LEN: usize = 40;

    /// Encodes the private data.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        bytes[1] = u8::from(self.big_endian) * FLAG_BIG_ENDIAN;
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        if let Some(iomaps) = self.iomaps {
            bytes[1] |= FLAG_IOMAP;
            bytes[7] = scale(iomaps);
        }
        bytes[8..24].copy_from_slice(&self.table.encode(true));
        bytes[24..40].copy_from_slice(&self.buffer.encode(true));
        bytes
    }

    /// Parses private data. Bytes after it are ignored, because the message's field is padded.
    ///
    /// # Errors
    /// `ShortConnData`, `Version`, `EmptyTable`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        let (needed, found) = (Self::LEN, bytes.len());
        let bytes: &[u8; Self::LEN] = bytes
            .first_chunk()
            .ok_or(Violation::ShortConnData { needed, found })?;
        if bytes[0] != VERSION {
            return Err(Violation::Version(bytes[0]));
        }
        let sge = |at: usize| Sge::decode(core::array::from_fn(|i| bytes[at + i]), true);
        let data = Self {
            big_endian: bytes[1] & FLAG_BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomaps: (bytes[1] & FLAG_IOMAP != 0).then(|| unscale(bytes[7])),
            table: sge(8),
            buffer: sge(24),
        };
        if data.table.length == 0 {
            return Err(Violation::EmptyTable);
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> ConnData {
        ConnData {
            big_endian: false,
            credits: 384,
            iomaps: Some(16),
            table: Sge {
                addr: 0x0102_0304_0506_0708,
                key: 0x1112_1314,
                length: 2,
            },
            buffer: Sge {
                addr: 0x2122_2324_2526_2728,
                key: 0x3132_3334,
                length: 65_536,
            },
        }
    }

    #[test]
    fn private_data_is_laid_out_as_struct_rs_conn_data() {
        let bytes = data().encode();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 16]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..24], [0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2]);
        assert_eq!(bytes[32..40], [0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0]);
        let mut padded = bytes.to_vec();
        padded.resize(56, 0);
        assert_eq!(ConnData::decode(&padded), Ok(data()));
    }

    #[test]
    fn short_data_another_version_and_an_empty_table_are_refused() {
        let bytes = data().encode();
        let short = ConnData::decode(&bytes[..39]);
        assert!(matches!(
            short,
            Err(Violation::ShortConnData { found: 39, .. })
        ));
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(ConnData::decode(&other), Err(Violation::Version(2)));
        let mut empty = bytes;
        empty[20..24].fill(0);
        assert_eq!(ConnData::decode(&empty), Err(Violation::EmptyTable));
    }

    #[test]
    fn a_peer_without_the_iomap_flag_has_no_iomaps() {
        let mut bytes = data().encode();
        bytes[1] = 1;
        let read = ConnData::decode(&bytes).unwrap();
        assert_eq!((read.iomaps, read.big_endian), (None, true));
    }
}
