//! The internet checksum (RFC 1071).

/// A ones' complement sum of 16-bit words, not yet folded.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word))
    }

    /// Adds bytes that start at an even offset; an odd last byte counts as the high byte of a word.
    pub(super) fn bytes(self, bytes: &[u8]) -> Sum {
        let (words, odd) = bytes.as_chunks::<2>();
        let sum = words
            .iter()
            .fold(self, |sum, word| sum.word(u16::from_be_bytes(*word)));
        odd.iter()
            .fold(sum, |sum, byte| sum.word(u16::from(*byte) << 8))
    }

    /// The checksum: the complement of the folded sum.
    pub(super) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !(sum as u16)
    }
}
