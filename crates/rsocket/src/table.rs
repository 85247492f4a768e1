//! The target table: entries that name memory of the side that wrote them.

use crate::config::TABLE_ENTRIES;
use crate::iomap::Iomap;

/// Memory of a side, for the other to write to (`struct rs_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as a virtual address of its owner.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
    /// Bytes; entries, for a table.
    pub length: u32,
}

/// The memory that the peer writes: the target table and, right after it, the iomap. The endpoint's owner has it.
pub trait Table {
    /// Copies bytes out, from `offset` on. The peer may write meanwhile.
    fn load(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes in, from `offset` on.
    fn store(&self, offset: usize, from: &[u8]);
}

/// Bytes of a table with an iomap of `iomaps` entries.
pub fn table_bytes(iomaps: u16) -> usize {
    usize::from(TABLE_ENTRIES) * Sge::LEN + usize::from(iomaps) * Iomap::LEN
}

impl Sge {
    /// Bytes of the encoded form.
    pub const LEN: usize = 16;

    /// The entry's bytes, in the byte order of the memory that it is written to.
    pub fn encode(&self, big_endian: bool) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (addr, key, length) = match big_endian {
            true => (
                self.addr.to_be_bytes(),
                self.key.to_be_bytes(),
                self.length.to_be_bytes(),
            ),
            false => (
                self.addr.to_le_bytes(),
                self.key.to_le_bytes(),
                self.length.to_le_bytes(),
            ),
        };
        bytes[..8].copy_from_slice(&addr);
        bytes[8..12].copy_from_slice(&key);
        bytes[12..].copy_from_slice(&length);
        bytes
    }

    /// Reads an entry.
    pub fn decode(bytes: [u8; Self::LEN], big_endian: bool) -> Self {
        let addr: [u8; 8] = core::array::from_fn(|at| bytes[at]);
        let word = |from: usize| -> [u8; 4] { core::array::from_fn(|at| bytes[from + at]) };
        match big_endian {
            true => Self {
                addr: u64::from_be_bytes(addr),
                key: u32::from_be_bytes(word(8)),
                length: u32::from_be_bytes(word(12)),
            },
            false => Self {
                addr: u64::from_le_bytes(addr),
                key: u32::from_le_bytes(word(8)),
                length: u32::from_le_bytes(word(12)),
            },
        }
    }
}

/// Takes entry `index` if the peer has written it, and clears it. An entry of no bytes is not written.
///
/// The peer writes an entry again only after the memory of the former was filled and read, so clearing loses nothing.
pub(crate) fn take_entry(table: &dyn Table, index: u16, big_endian: bool) -> Option<Sge> {
    let offset = usize::from(index) * Sge::LEN;
    let mut bytes = [0; Sge::LEN];
    table.load(offset, &mut bytes);
    // The peer's write may be under way: an entry counts once two looks agree.
    loop {
        let mut again = [0; Sge::LEN];
        table.load(offset, &mut again);
        if again == bytes {
            break;
        }
        bytes = again;
    }
    let sge = Sge::decode(bytes, big_endian);
    if sge.length == 0 {
        return None;
    }
    table.store(offset, &[0; Sge::LEN]);
    Some(sge)
}
