//! Partition keys and queue keys.

use core::fmt;

/// A partition key (IBTA 10.9.1): 15 bits of partition, and the membership in the highest bit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition with full membership, the only entry of a RoCE port's table.
    pub const DEFAULT: PKey = PKey(0xFFFF);

    /// Set for full members; two limited members cannot communicate.
    pub const FULL_MEMBER: u16 = 0x8000;

    /// The partition, without the membership bit.
    pub const fn partition(self) -> u16 {
        self.0 & !Self::FULL_MEMBER
    }

    /// True for full membership.
    pub const fn is_full_member(self) -> bool {
        self.0 & Self::FULL_MEMBER != 0
    }

    /// True if a packet with this key may reach a port with `other` (IBTA 10.9.3): the partitions
    /// are equal and not zero (invalid), and at least one side is a full member.
    pub const fn matches(self, other: PKey) -> bool {
        self.partition() != 0
            && self.partition() == other.partition()
            && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for PKey {
    fn default() -> PKey {
        PKey::DEFAULT
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({self})")
    }
}

/// A queue key (IBTA 10.2.5), which a datagram must carry to be accepted.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of QP1, the general services interface (IBTA 10.2.5, Linux `IB_QP1_QKEY`).
    pub const GSI: QKey = QKey(0x8001_0000);

    /// The rdma_cm's default key for UD queue pairs (`RDMA_UDP_QKEY`).
    pub const RDMA_CM: QKey = QKey(0x0123_4567);

    /// True for a key with the highest bit set. Only privileged code may use it; a work request
    /// that carries such a key is sent with the queue pair's own key instead (IBTA 10.2.5).
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_limited_members_do_not_match_and_a_full_one_matches_both() {
        let (full, limited) = (PKey(0x8012), PKey(0x0012));
        assert!(full.matches(full));
        assert!(full.matches(limited));
        assert!(limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(PKey(0x8013)));
    }

    #[test]
    fn the_invalid_partition_matches_nothing() {
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }
}
