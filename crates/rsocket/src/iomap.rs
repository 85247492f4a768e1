//! Iomaps: memory of the program that the peer writes to directly.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::sge::Sge;

/// Maximum of entries: the maximum of the scaled byte in the private data.
pub const IOMAPS_MAX: u16 = unscale(u8::MAX);

/// Above this value, the byte in the private data counts in units of 256.
const SCALED_FROM: u8 = 1 << 7;

/// An offset of the stream's iomap and the memory behind it (`struct rs_iomap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iomap {
    /// Offset of the first byte.
    pub offset: u64,
    /// The memory.
    pub memory: Sge,
}

impl Iomap {
    /// Bytes of the encoded form.
    pub const LEN: usize = 8 + Sge::LEN;

    /// Encodes the entry, in the byte order of the side whose memory it is written to.
    pub fn encode(&self, big_endian: bool) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&match big_endian {
            true => self.offset.to_be_bytes(),
            false => self.offset.to_le_bytes(),
        });
        bytes[8..].copy_from_slice(&self.memory.encode(big_endian));
        bytes
    }

    /// Parses an entry.
    pub fn decode(bytes: [u8; Self::LEN], big_endian: bool) -> Self {
        let offset: [u8; 8] = core::array::from_fn(|at| bytes[at]);
        Self {
            offset: match big_endian {
                true => u64::from_be_bytes(offset),
                false => u64::from_le_bytes(offset),
            },
            memory: Sge::decode(core::array::from_fn(|at| bytes[8 + at]), big_endian),
        }
    }

    /// The address for `offset` and the number of bytes that follow it; `None` if it is not in this entry.
    pub fn at(&self, offset: u64) -> Option<Sge> {
        let skipped = offset.checked_sub(self.offset)?;
        let skipped = u32::try_from(skipped)
            .ok()
            .filter(|skipped| *skipped < self.memory.length)?;
        Some(Sge {
            addr: self.memory.addr.wrapping_add(skipped.into()),
            key: self.memory.key,
            length: self.memory.length - skipped,
        })
    }
}

/// A number of entries as one byte: exact up to 128, then rounded down to a multiple of 256.
pub const fn scale(entries: u16) -> u8 {
    if entries <= SCALED_FROM as u16 {
        return entries as u8;
    }
    let units = entries >> 8;
    SCALED_FROM
        | if units < SCALED_FROM as u16 {
            units as u8
        } else {
            SCALED_FROM - 1
        }
}

/// The number of entries that a byte encodes.
pub const fn unscale(byte: u8) -> u16 {
    if byte <= SCALED_FROM {
        return byte as u16;
    }
    ((byte & !SCALED_FROM) as u16) << 8
}

/// The program's memory that this side offers to its peer.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// The used entries of the peer's iomap.
    used: Vec<bool>,
    /// Entries to write, in order.
    waiting: VecDeque<(u16, Iomap)>,
}

impl Offers {
    /// For a peer with `entries` in its iomap.
    pub(crate) fn new(entries: u16) -> Self {
        Self {
            used: vec![false; entries.into()],
            waiting: VecDeque::new(),
        }
    }

    /// Takes a free entry, or returns `None` if all are in use.
    pub(crate) fn offer(&mut self, iomap: Iomap) -> Option<u16> {
        let free = self.used.iter().position(|used| !used)?;
        self.used[free] = true;
        let index = free as u16;
        self.waiting.push_back((index, iomap));
        Some(index)
    }

    /// Releases an entry, which is not written any more.
    pub(crate) fn withdraw(&mut self, index: u16) {
        if let Some(used) = self.used.get_mut(usize::from(index)) {
            *used = false;
        }
        self.waiting.retain(|(waiting, _)| *waiting != index);
    }

    /// The next entry to write.
    pub(crate) fn next(&mut self) -> Option<(u16, Iomap)> {
        self.waiting.pop_front()
    }

    /// Whether no entry waits to be written.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_entries_scale_as_in_librdmacm() {
        for (entries, byte, back) in [
            (0, 0, 0),
            (7, 7, 7),
            (128, 128, 128),
            (300, 129, 256),
            (512, 130, 512),
        ] {
            assert_eq!((scale(entries), unscale(byte)), (byte, back), "{entries}");
        }
        assert_eq!(IOMAPS_MAX, 127 << 8);
        assert_eq!(scale(u16::MAX), u8::MAX);
    }

    #[test]
    fn an_offset_is_found_within_its_memory_only() {
        let memory = Sge {
            addr: 1000,
            key: 7,
            length: 50,
        };
        let iomap = Iomap {
            offset: 200,
            memory,
        };
        assert_eq!(
            iomap.at(210).map(|at| (at.addr, at.length)),
            Some((1010, 40))
        );
        assert_eq!(iomap.at(199), None);
        assert_eq!(iomap.at(250), None);
        assert_eq!(iomap.at(u64::MAX), None);
    }

    #[test]
    fn an_entry_is_read_back_in_either_byte_order() {
        let memory = Sge {
            addr: 1,
            key: 2,
            length: 3,
        };
        let iomap = Iomap { offset: 9, memory };
        for big_endian in [false, true] {
            assert_eq!(Iomap::decode(iomap.encode(big_endian), big_endian), iomap);
        }
        assert_eq!(iomap.encode(true)[7], 9);
    }
}
