//! Data generated from a seed. Each byte depends on its offset.

/// Bytes of a word of the pattern.
const WORD: usize = 8;

/// The words of SplitMix64 from a seed, in little-endian order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) seed: u64,
}

impl Pattern {
    fn word(self, number: usize) -> [u8; WORD] {
        let step = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut word = self.seed.wrapping_add(step);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31).to_le_bytes()
    }

    /// Fills with the pattern.
    pub(super) fn fill(self, data: &mut [u8]) {
        for (number, part) in data.chunks_mut(WORD).enumerate() {
            part.copy_from_slice(&self.word(number)[..part.len()]);
        }
    }

    /// Fills with bytes that all differ from the pattern.
    pub(super) fn fill_with_complement(self, data: &mut [u8]) {
        self.fill(data);
        data.iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// The offset of the first byte that differs from the pattern.
    pub(super) fn first_wrong(self, data: &[u8]) -> Option<usize> {
        for (number, part) in data.chunks(WORD).enumerate() {
            let word = self.word(number);
            if part != &word[..part.len()] {
                let at = part
                    .iter()
                    .zip(word)
                    .position(|(found, right)| *found != right);
                return at.map(|at| number * WORD + at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        for length in [1, 7, 8, 9, 1000] {
            let (pattern, mut data) = (Pattern { seed: 42 }, vec![0; length]);
            pattern.fill(&mut data);
            assert_eq!(pattern.first_wrong(&data), None);
            assert_ne!(Pattern { seed: 43 }.first_wrong(&data), None);
            for at in 0..length {
                data[at] ^= 1;
                assert_eq!(pattern.first_wrong(&data), Some(at));
                data[at] ^= 1;
            }
            pattern.fill_with_complement(&mut data);
            assert_eq!(pattern.first_wrong(&data), Some(0));
        }
    }

    #[test]
    fn the_pattern_is_the_one_of_the_c_peer() {
        // SplitMix64's first output for the state 1, from its reference implementation.
        let mut data = [0; 8];
        Pattern { seed: 1 }.fill(&mut data);
        assert_eq!(u64::from_le_bytes(data), 0x5692_161d_100b_05e5);
    }
}
