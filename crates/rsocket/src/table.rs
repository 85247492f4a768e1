//! The target table: entries that describe memory of the peer, which writes them.

use crate::iomap::Iomap;
use crate::mutant::{Mutant, is_planted};
use crate::sge::Sge;

/// Entries of the target table (`RS_SGL_SIZE`): one for each half of a receive buffer.
pub(crate) const TABLE_ENTRIES: u16 = 2;

/// The memory that the peer writes: the target table, then the iomap. The endpoint's caller owns it.
pub trait Table {
    /// Copies bytes at `offset` to `into`. The peer may write concurrently.
    fn load(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes to `offset`.
    fn store(&self, offset: usize, from: &[u8]);
}

/// Bytes of a table with an iomap of `iomaps` entries.
pub fn table_bytes(iomaps: u16) -> usize {
    usize::from(TABLE_ENTRIES) * Sge::LEN + usize::from(iomaps) * Iomap::LEN
}

/// Takes entry `index` if the peer has written it, and clears it. An entry of no bytes counts as not written.
///
/// The peer reuses an entry only after the memory that it described was filled and read, so clearing loses nothing.
pub(crate) fn take_entry(table: &dyn Table, index: u16, big_endian: bool) -> Option<Sge> {
    let offset = usize::from(index) * Sge::LEN;
    let mut bytes = [0; Sge::LEN];
    table.load(offset, &mut bytes);
    // The peer may be writing the entry: it is valid once two reads agree.
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
    if !is_planted(Mutant::TableEntryStays) {
        table.store(offset, &[0; Sge::LEN]);
    }
    Some(sge)
}
