//! The pieces of this process's memory that a request consists of.

#![allow(unsafe_code, reason = "a contract about the pieces")]

use std::ops::Range;

use crate::engine::Payload;

/// The pieces of this side's memory that contain a range of a request, each an address and a length, and their number.
/// `None` if there are more than `N`.
pub(super) fn list<const N: usize>(
    local: &Payload<'_>,
    range: Range<u32>,
) -> Option<([(u64, usize); N], usize)> {
    let (mut pieces, mut count) = ([(0, 0); N], 0);
    // SAFETY: the pieces are only listed.
    unsafe {
        for_each_piece(local, range, |addr, _, len| {
            if let Some(piece) = pieces.get_mut(count) {
                *piece = (addr, len);
            }
            count += 1;
        });
    }
    (count <= N).then_some((pieces, count))
}

/// Visits the pieces of this side's memory that contain a range of a request: address, offset in the request, and
/// length.
///
/// # Safety
/// The requirements of `visit` hold for those pieces.
pub(super) unsafe fn for_each_piece(
    local: &Payload<'_>,
    range: Range<u32>,
    mut visit: impl FnMut(u64, u32, usize),
) {
    let mut offset = 0u32;
    let mut one = |addr: u64, len: u32| {
        let end = offset.saturating_add(len);
        let (first, last) = (range.start.max(offset), range.end.min(end));
        if first < last {
            visit(
                addr + u64::from(first - offset),
                first,
                (last - first) as usize,
            );
        }
        offset = end;
    };
    match local {
        Payload::Inline(bytes) => one(
            bytes.as_ptr().expose_provenance() as u64,
            bytes.len() as u32,
        ),
        Payload::Segments(segments) => {
            segments
                .iter()
                .for_each(|segment| one(segment.addr, segment.len));
        }
    }
}
