//! Where the records of a ring are, and the mark that each begins with.
//!
//! A record begins a line of memory: with its mark, its header, and a short payload. A longer payload begins the next
//! line, and a longer header takes the next, too. The mark is the record's kind and the number of the ring's lap. So what is left of an earlier lap does not look
//! like a record, except by chance in a payload; the writer removes that before the reader gets there.

use super::record_header::HEADER_LEN;
use crate::engine::Compact;

/// Bytes of a ring: several times what one queue pair has in flight.
pub(super) const RING_LEN: usize = 256 << 10;
/// Offset of the ring: after the writer's page.
pub(super) const RING_AT: usize = 4096;
pub(super) const FILE_LEN: usize = RING_AT + RING_LEN;
/// Records begin at multiples of this: a cache line, so that two records have none in common.
pub(super) const LINE: usize = 64;
/// Length of the mark. The header follows.
pub(super) const MARK_LEN: usize = 8;
/// Length of the header of a record in the short form.
pub(super) const COMPACT_LEN: usize = 4 * Compact::WORDS;
/// Maximum payload of a record.
pub(super) const PAYLOAD_MAX: usize = 1 << 16;

// The longest record fits into an empty ring, even if the end of the ring must be skipped.
const _: () = assert!(RING_LEN > 2 * record_len(HEADER_LEN, PAYLOAD_MAX));
/// The reader looks whether the writer waits when it has read this much. That takes a fence, so not for every record.
pub(super) const LOOK_EVERY: usize = RING_LEN / 16;
// A writer that waits although the reader has read everything has written more than this since the reader last looked.
const _: () = assert!(RING_LEN - 2 * record_len(HEADER_LEN, PAYLOAD_MAX) > LOOK_EVERY);
// The end of the ring, too, has room for a mark.
const _: () = assert!(RING_LEN.is_multiple_of(LINE) && RING_AT.is_multiple_of(LINE));
const _: () = assert!(MARK_LEN + HEADER_LEN <= LINE && MARK_LEN + COMPACT_LEN <= LINE);

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// None: the next record is at the start of the ring.
    Wrap = 1,
    /// Packets.
    Packets = 2,
    /// The short form of a send, a write or an acknowledgement.
    Compact = 3,
    /// About a write that is pulled.
    Pull = 4,
}

/// Bits of a mark that are the kind. The others are the lap.
const KIND_BITS: u32 = 3;
/// The mark of no record.
pub(super) const NONE: u32 = 0;

/// The mark of a record at a position.
#[inline]
pub(super) fn mark_of(position: u64, kind: Kind) -> u32 {
    lap_of(position) | kind as u32
}

/// What is at a position that begins with this word. `None` if it is not the mark of a record of this lap.
#[inline]
pub(super) fn kind_of(mark: u32, position: u64) -> Option<Kind> {
    // One subtraction, because readers poll this: a lap has no bits of a kind.
    match mark.wrapping_sub(lap_of(position)) {
        1 => Some(Kind::Wrap),
        2 => Some(Kind::Packets),
        3 => Some(Kind::Compact),
        4 => Some(Kind::Pull),
        _ => None,
    }
}

#[inline]
fn lap_of(position: u64) -> u32 {
    ((position / RING_LEN as u64) as u32) << KIND_BITS
}

/// Offset in the ring of a position, which is a multiple of [`LINE`].
#[inline]
pub(super) fn offset_of(position: u64) -> usize {
    // The compiler sees that it is a multiple, so no check remains.
    position as usize % RING_LEN / LINE * LINE
}

/// Offset of the payload in a record.
#[inline]
pub(super) const fn payload_at(header_len: usize, len: usize) -> usize {
    if MARK_LEN + header_len + len <= LINE {
        MARK_LEN + header_len
    } else {
        (MARK_LEN + header_len).next_multiple_of(LINE)
    }
}

/// Length of a record, with what follows up to the next one.
#[inline]
pub(super) const fn record_len(header_len: usize, len: usize) -> usize {
    // The compiler turns `next_multiple_of` into a comparison and a choice, which take longer.
    (payload_at(header_len, len) + len + LINE - 1) & !(LINE - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Kind; 4] = [Kind::Wrap, Kind::Packets, Kind::Compact, Kind::Pull];

    proptest! {
        #[test]
        fn a_mark_counts_in_its_own_lap_only(position: u64, laps in 1u64..1 << 20) {
            let position = position >> 1;
            let later = position + laps * RING_LEN as u64;
            for kind in KINDS {
                let mark = mark_of(position, kind);
                prop_assert_eq!(kind_of(mark, position), Some(kind));
                prop_assert_eq!(kind_of(mark, later), None);
            }
            prop_assert_eq!(kind_of(NONE, position), None);
        }

        #[test]
        fn every_word_that_counts_is_one_that_a_writer_writes(mark: u32, position: u64) {
            for mark in [mark, lap_of(position) | (mark % (1 << KIND_BITS))] {
                if let Some(kind) = kind_of(mark, position) {
                    prop_assert_eq!(mark_of(position, kind), mark);
                }
            }
        }
    }

    #[test]
    fn a_short_payload_is_in_the_line_of_its_header_and_a_longer_one_begins_a_line() {
        assert_eq!(
            (payload_at(COMPACT_LEN, 24), record_len(COMPACT_LEN, 24)),
            (40, 64)
        );
        assert_eq!(
            (payload_at(COMPACT_LEN, 25), record_len(COMPACT_LEN, 25)),
            (64, 128)
        );
        assert_eq!(
            (payload_at(COMPACT_LEN, 64), record_len(COMPACT_LEN, 64)),
            (64, 128)
        );
        assert_eq!((payload_at(96, 0), record_len(96, 0)), (128, 128));
    }
}
