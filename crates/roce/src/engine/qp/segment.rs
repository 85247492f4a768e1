//! Walks a message through the scatter/gather elements of its work request.

use alloc::vec::Vec;
use core::ops::Range;

use portolan_provider::verbs::Sge;

use crate::engine::{LocalAccessError, MemoryTable, PdId, Placement, PlacementSource, Segment};

use super::context::Context;
use super::outbox::Outbox;

/// A position in the elements of a work request. Messages move forward, so finding the next packet's position needs no
/// scan; moving back restarts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SgeCursor {
    /// Bytes of the message before this position.
    offset: u64,
    /// Index of the element.
    index: usize,
    /// Bytes of the element before this position.
    within: u32,
}

impl SgeCursor {
    /// Moves to `range.start` and visits the parts of elements that contain `range`. Stops after its end, at the end of
    /// the elements or at the first error.
    #[inline]
    fn walk<E>(
        &mut self,
        sges: &[Sge],
        range: Range<u64>,
        mut visit: impl FnMut(&Sge, u64, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        if range.start < self.offset {
            *self = Self::default();
        }
        // Mostly all of a message that has one element.
        if let [sge] = sges
            && range == (0..u64::from(sge.length))
            && sge.length > 0
        {
            visit(sge, sge.addr, sge.length)?;
            *self = Self {
                offset: range.end,
                index: 1,
                within: 0,
            };
            return Ok(());
        }
        while self.offset < range.end {
            let Some(sge) = sges.get(self.index) else {
                break;
            };
            let rest = sge.length - self.within;
            let before_start = range.start.saturating_sub(self.offset);
            let until = if before_start > 0 {
                before_start
            } else {
                range.end - self.offset
            };
            // A part is no longer than an element, whose length has 32 bits.
            let part = u64::from(rest).min(until) as u32;
            if before_start == 0 && part > 0 {
                visit(sge, sge.addr.wrapping_add(u64::from(self.within)), part)?;
            }
            self.offset += u64::from(part);
            self.within += part;
            if self.within == sge.length {
                self.index += 1;
                self.within = 0;
            }
        }
        Ok(())
    }

    /// Collects `range` of a message in `segments` (cleared first), for sending or, with `write`, for what was there
    /// before at the peer.
    #[inline]
    pub(super) fn gather(
        &mut self,
        sges: &[Sge],
        range: Range<u64>,
        pd: PdId,
        (memory, write): (&MemoryTable, bool),
        segments: &mut Vec<Segment>,
    ) -> Result<(), LocalAccessError> {
        segments.clear();
        self.walk(sges, range, |sge, iova, len| {
            let addr = memory.check_local(pd, sge.lkey, iova, len, write)?;
            segments.push(Segment { addr, len });
            Ok(())
        })
    }

    /// Emits placements for `len` bytes received at `offset` of a message; emits none on an error.
    pub(super) fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        source: PlacementSource,
        len: usize,
        cx: &Context<'_>,
        out: &mut Outbox,
    ) -> Result<(), LocalAccessError> {
        let before = out.placements.len();
        let mut start = 0;
        let result = self.walk(sges, offset..offset + len as u64, |sge, iova, len| {
            let addr = cx.memory.check_local(cx.pd, sge.lkey, iova, len, true)?;
            let source_range = start..start + len as usize;
            start = source_range.end;
            out.placements.push_back(Placement {
                addr,
                source,
                source_range,
            });
            Ok(())
        });
        if result.is_err() {
            out.placements.truncate(before);
        }
        result
    }
}

/// Checks whether `range` of a message may be sent from its elements or, with `write`, received into them.
pub(super) fn check(
    sges: &[Sge],
    range: Range<u64>,
    pd: PdId,
    memory: &MemoryTable,
    write: bool,
) -> Result<(), LocalAccessError> {
    SgeCursor::default().walk(sges, range, |sge, iova, len| {
        memory.check_local(pd, sge.lkey, iova, len, write).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_element_is_visited_whole_and_a_refused_visit_moves_nothing() {
        let sges = [Sge {
            addr: 100,
            length: 50,
            lkey: 1,
        }];
        let mut cursor = SgeCursor::default();
        let refused = cursor.walk(&sges, 0..50, |_, _, _| Err(()));
        assert_eq!((refused, cursor.offset), (Err(()), 0));
        for _ in 0..2 {
            let mut seen = Vec::new();
            for range in [0..50, 50..60, 20..50, 0..50, 40..50] {
                let visit = |_: &Sge, addr, len| {
                    seen.push((addr, len));
                    Ok::<(), ()>(())
                };
                cursor.walk(&sges, range, visit).unwrap();
            }
            assert_eq!(seen, [(100, 50), (120, 30), (100, 50), (140, 10)]);
        }
        let empty = [Sge {
            length: 0,
            ..sges[0]
        }];
        let visited = SgeCursor::default().walk(&empty, 0..0, |_, _, _| Err(()));
        assert_eq!(visited, Ok(()), "memory of no bytes is not checked");
    }

    proptest! {
        #[test]
        fn any_range_is_visited_once_and_in_order(
            lengths in proptest::collection::vec(0u32..50, 0..8),
            ranges in proptest::collection::vec((0u64..400, 0u64..100), 1..8),
        ) {
            let sges: Vec<Sge> = (0u64..)
                .zip(&lengths)
                .map(|(index, length)| Sge { addr: index << 32, length: *length, lkey: 1 })
                .collect();
            let bytes: Vec<u64> = sges
                .iter()
                .flat_map(|sge| (0..u64::from(sge.length)).map(|at| sge.addr + at))
                .collect();
            let mut cursor = SgeCursor::default();
            for (start, len) in ranges {
                let mut seen = Vec::new();
                cursor
                    .walk(&sges, start..start + len, |_, addr, len| {
                        seen.extend((0..u64::from(len)).map(|at| addr + at));
                        Ok::<(), ()>(())
                    })
                    .unwrap();
                let expected: Vec<u64> =
                    bytes.iter().skip(start as usize).take(len as usize).copied().collect();
                prop_assert_eq!(seen, expected);
            }
        }
    }
}
