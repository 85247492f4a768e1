//! The free ephemeral ports of one port space.

use alloc::boxed::Box;
use alloc::vec;
use core::ops::RangeInclusive;

/// Ports per word.
const WORD_PORTS: usize = 64;

/// A set of ports in a range, as a bitmap. The whole range is at most 1,024 words, so searching an almost empty set
/// costs less than the rest of a bind.
#[derive(Debug)]
pub(super) struct FreePorts {
    first: u16,
    count: usize,
    /// Bit `i` of word `w` is the port `first + 64 w + i`, and is 1 if it is free.
    words: Box<[u64]>,
}

impl FreePorts {
    /// The whole range.
    pub(super) fn all(range: &RangeInclusive<u16>) -> Self {
        let count = range.len();
        let mut words = vec![u64::MAX; count.div_ceil(WORD_PORTS)].into_boxed_slice();
        if let (Some(last), 1..) = (words.last_mut(), count % WORD_PORTS) {
            *last = u64::MAX >> (WORD_PORTS - count % WORD_PORTS);
        }
        Self {
            first: *range.start(),
            count,
            words,
        }
    }

    /// Sets whether a port is free. Ports outside the range are ignored.
    pub(super) fn set(&mut self, port: u16, is_free: bool) {
        let Some(at) = port.checked_sub(self.first).map(usize::from) else {
            return;
        };
        if at >= self.count {
            return;
        }
        let (word, bit) = (&mut self.words[at / WORD_PORTS], 1 << (at % WORD_PORTS));
        if is_free {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// The first free port at or after the start that `seed` chooses, wrapping around.
    pub(super) fn find(&self, seed: u32) -> Option<u16> {
        let start = (seed as usize).checked_rem(self.count)?;
        let (word, bit) = (start / WORD_PORTS, start % WORD_PORTS);
        let from_start = u64::MAX << bit;
        let count = self.words.len();
        let between = (1..count).map(|step| ((word + step) % count, u64::MAX));
        // The first word is visited twice: for the bits after the start first, for those before it last.
        let mut looks = core::iter::once((word, from_start))
            .chain(between)
            .chain(core::iter::once((word, !from_start)));
        let (word, free) = looks.find_map(|(word, mask)| {
            let free = self.words[word] & mask;
            (free != 0).then_some((word, free))
        })?;
        let at = word * WORD_PORTS + free.trailing_zeros() as usize;
        // `at` is below `count`, which is at most 2^16, so the port is within the range.
        Some(self.first.wrapping_add(at as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_a_range_is_found_once_from_any_start() {
        for range in [
            1..=1,
            1_000..=1_063,
            1_000..=1_064,
            5..=132,
            65_400..=65_535,
        ] {
            for seed in [0, 1, 63, 64, 65, u32::MAX] {
                let mut free = FreePorts::all(&range);
                let mut found = 0;
                let mut expected = seed as usize % range.len();
                while let Some(port) = free.find(seed) {
                    assert_eq!(usize::from(port - range.start()), expected);
                    free.set(port, false);
                    expected = (expected + 1) % range.len();
                    found += 1;
                }
                assert_eq!(found, range.len());
                free.set(*range.end(), true);
                assert_eq!(free.find(seed), Some(*range.end()));
            }
        }
    }

    #[test]
    fn ports_beside_the_range_are_not_kept_and_an_empty_range_has_none() {
        let mut free = FreePorts::all(&(100..=101));
        for port in [0, 99, 102, 163, 164, u16::MAX] {
            free.set(port, false);
            free.set(port, true);
        }
        free.set(100, false);
        free.set(101, false);
        assert_eq!(free.find(7), None);
        #[allow(clippy::reversed_empty_ranges, reason = "a range without ports")]
        let mut none = FreePorts::all(&(101..=100));
        none.set(101, true);
        assert_eq!(none.find(7), None);
        let whole = FreePorts::all(&(0..=u16::MAX));
        assert_eq!(whole.find(65_535), Some(65_535));
    }
}
