//! Blocks: ranges of queue pair numbers, which divide one UDP port among processes.

use std::fmt;

/// Number of blocks in a group, including block 0. The high byte of a 24-bit queue pair number is the block; half of
/// its values are enough for any host.
pub const BLOCK_COUNT: usize = 128;

/// One block of queue pair numbers: the high byte of the 24-bit QPN.
///
/// Block 0 is a role, not a process: the coordinator reads it. It has the special queue pairs 0 and 1, and receives
/// packets that belong to no block. Blocks 1 to 127 belong to one process each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(u8);

impl Block {
    /// The coordinator's role: queue pairs 0 and 1, and packets of no block.
    pub const COORDINATOR: Self = Self(0);

    /// Block `index`, if `index` is below [`BLOCK_COUNT`].
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < BLOCK_COUNT {
            Some(Self(index))
        } else {
            None
        }
    }

    /// The block that contains a 24-bit queue pair number; `None` for numbers outside of all blocks, such as the
    /// multicast QPN 0xFFFFFF.
    pub const fn of_qpn(qpn: u32) -> Option<Self> {
        if qpn >> 16 < BLOCK_COUNT as u32 {
            Some(Self((qpn >> 16) as u8))
        } else {
            None
        }
    }

    /// The lowest queue pair number of the block; 65,535 more follow.
    pub const fn first_qpn(self) -> u32 {
        (self.0 as u32) << 16
    }

    /// The high byte of the block's queue pair numbers.
    pub const fn index(self) -> u8 {
        self.0
    }

    /// The blocks that processes can have, 1 to 127.
    pub fn members() -> impl Iterator<Item = Self> {
        (1..BLOCK_COUNT as u8).map(Self)
    }

    /// Every block, the coordinator's first. This is the order of the sockets.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..BLOCK_COUNT as u8).map(Self)
    }
}

/// A set of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockSet(u128);

impl BlockSet {
    /// No block.
    pub(super) const EMPTY: Self = Self(0);

    /// The set of the blocks whose bits are set; block 0 is the lowest bit.
    pub(super) const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// One bit per block; block 0 is the lowest.
    pub(super) const fn bits(self) -> u128 {
        self.0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn contains(self, block: Block) -> bool {
        self.0 & Self::bit(block) != 0
    }

    pub(super) const fn insert(&mut self, block: Block) {
        self.0 |= Self::bit(block);
    }

    pub(super) const fn remove(&mut self, block: Block) {
        self.0 &= !Self::bit(block);
    }

    /// Adds the other's members.
    pub(super) const fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// The members, the lowest first.
    pub(super) fn iter(self) -> impl Iterator<Item = Block> {
        Block::all().filter(move |block| self.contains(*block))
    }

    const fn bit(block: Block) -> u128 {
        1 << block.0
    }
}

const _: () = assert!(BLOCK_COUNT == u128::BITS as usize, "one bit per block");

impl FromIterator<Block> for BlockSet {
    fn from_iter<I: IntoIterator<Item = Block>>(blocks: I) -> Self {
        let mut set = Self::EMPTY;
        for block in blocks {
            set.insert(block);
        }
        set
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({})", self.0)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_number_names_its_block() {
        for block in Block::all() {
            assert_eq!(Block::of_qpn(block.first_qpn()), Some(block));
            assert_eq!(Block::of_qpn(block.first_qpn() + 0xffff), Some(block));
        }
        assert_eq!(Block::of_qpn(1), Some(Block::COORDINATOR));
    }

    #[test]
    fn numbers_above_the_last_block_have_none() {
        assert_eq!(Block::of_qpn(0x80_0000), None);
        assert_eq!(Block::of_qpn(0xff_ffff), None);
        assert_eq!(Block::new(128), None);
    }

    #[test]
    fn a_set_contains_exactly_the_inserted_blocks() {
        let [first, last] = [0, 127].map(|index| Block::new(index).unwrap());
        let mut set: BlockSet = [last, first].into_iter().collect();
        assert!(set.iter().eq([first, last]));
        assert_eq!(BlockSet::from_bits(set.bits()), set);
        set.remove(first);
        assert!(!set.contains(first) && set.contains(last));
        set.remove(last);
        assert!(set.is_empty());
        set.add([first].into_iter().collect());
        assert!(set.iter().eq([first]));
    }
}
