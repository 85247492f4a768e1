//! The responder's record of reads and atomics, to answer duplicates.

use alloc::collections::VecDeque;

use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AtomicEthRepr, RethRepr};

use crate::engine::qp::send_queue::packets_of;

/// An executed request (the responder resources of `max_dest_rd_atomic`; Linux `struct resp_res`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resource {
    first: Psn,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A duplicate read is executed again, because its data were lost.
    Read(RethRepr),
    /// A duplicate atomic is not executed: its result is stored (IBTA 9.4.5).
    Atomic {
        request: AtomicRequest,
        original: u64,
    },
}

/// The operands of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtomicRequest {
    pub(super) opcode: Opcode,
    pub(super) eth: AtomicEthRepr,
}

/// The last `max_dest_rd_atomic` reads and atomics, oldest first. A requester has at most that many outstanding, so it
/// never repeats one that was removed.
#[derive(Debug, Default)]
pub(super) struct Resources {
    held: VecDeque<Resource>,
}

impl Resources {
    /// Records a read; removes the oldest entry beyond `limit`.
    pub(super) fn remember_read(&mut self, first: Psn, reth: RethRepr, limit: u8) {
        self.remember(first, Kind::Read(reth), limit);
    }

    /// Records an atomic and its result; removes the oldest entry beyond `limit`.
    pub(super) fn remember_atomic(
        &mut self,
        psn: Psn,
        request: AtomicRequest,
        original: u64,
        limit: u8,
    ) {
        self.remember(psn, Kind::Atomic { request, original }, limit);
    }

    fn remember(&mut self, first: Psn, kind: Kind, limit: u8) {
        while self.held.len() >= usize::from(limit.max(1)) {
            self.held.pop_front();
        }
        self.held.push_back(Resource { first, kind });
    }

    /// Whether a duplicate read at `psn` requests the same memory as before, or a part of it.
    pub(super) fn allows(&self, psn: Psn, reth: &RethRepr, mtu: u32) -> bool {
        self.held.iter().any(|resource| {
            let Kind::Read(read) = &resource.kind else {
                return false;
            };
            let packets = psn.diff(resource.first);
            if packets < 0 || packets.unsigned_abs() >= packets_of(read.dma_len, mtu) {
                return false;
            }
            let offset = u64::from(packets.unsigned_abs()) * u64::from(mtu);
            reth.rkey == read.rkey
                && reth.va == read.va.wrapping_add(offset)
                && offset + u64::from(reth.dma_len) <= read.dma_len.into()
        })
    }

    /// The result of the atomic executed at `psn`, if the duplicate has the same operands.
    pub(super) fn result_of(&self, psn: Psn, again: &AtomicRequest) -> Option<u64> {
        self.held.iter().find_map(|resource| match &resource.kind {
            Kind::Atomic { request, original } if resource.first == psn && request == again => {
                Some(*original)
            }
            _ => None,
        })
    }

    /// The first PSN of the earliest read or atomic after `psn`, which is less than 2^23 packets before `expected`.
    pub(super) fn first_after(&self, psn: Psn, expected: Psn) -> Option<Psn> {
        let distance = expected.diff(psn);
        let mut firsts = self.held.iter().map(|resource| resource.first);
        // One that is older has a PSN that may seem to be after both.
        firsts.find(|first| (1..=distance).contains(&expected.diff(*first)) && *first != psn)
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_at(resources: &mut Resources, first: u32) {
        let reth = RethRepr {
            va: 0,
            rkey: 1,
            dma_len: 8,
        };
        resources.remember_read(Psn::new(first), reth, 2);
    }

    #[test]
    fn only_a_read_between_a_duplicate_and_the_expected_packet_is_after_it() {
        for start in [0, 0xff_fff0, 0x7f_fff0] {
            let psn = |offset: u32| Psn::new(start).add(offset);
            let mut resources = Resources::default();
            read_at(&mut resources, psn(10).into());
            for (duplicate, found) in [(9, Some(psn(10))), (10, None), (11, None)] {
                let after = resources.first_after(psn(duplicate), psn(20));
                assert_eq!(after, found, "{duplicate}");
            }
            // The distance of PSNs has 23 bits.
            for passed in [1 << 23, (1 << 23) + 15, 1 << 24] {
                let after = resources.first_after(psn(passed + 5), psn(passed + 7));
                assert_eq!(after, None, "{passed} packets later");
            }
            read_at(&mut resources, psn((1 << 23) + 6).into());
            let after = resources.first_after(psn((1 << 23) + 5), psn((1 << 23) + 7));
            assert_eq!(after, Some(psn((1 << 23) + 6)));
        }
    }
}
