//! The data of a datagram ping: a mark, the ping's number, and a pattern derived from it.

use crate::rping::{self, Mismatch};

/// The first bytes of our pings.
const MARK: [u8; 8] = *b"portolan";
/// Length of the mark and the number.
pub(super) const MIN_LEN: usize = MARK.len() + size_of::<u64>();

/// The data of the ping with this number; `size` is at least [`MIN_LEN`].
pub(in crate::commands) fn data(seq: u64, size: usize) -> Vec<u8> {
    let mut data = vec![0; size];
    if let Some((head, pattern)) = data.split_at_mut_checked(MIN_LEN) {
        let (mark, number) = head.split_at_mut(MARK.len());
        mark.copy_from_slice(&MARK);
        number.copy_from_slice(&seq.to_be_bytes());
        rping::fill(pattern, seq);
    }
    data
}

/// The number of the echoed ping; `None` if the answer is not an echo.
pub(in crate::commands) fn number(answer: &[u8]) -> Option<u64> {
    let number = answer.strip_prefix(&MARK)?.first_chunk()?;
    Some(u64::from_be_bytes(*number))
}

/// Compares an echo with the original ping.
pub(super) fn compare(seq: u64, size: usize, answer: &[u8]) -> Result<(), Mismatch> {
    rping::compare(&data(seq, size), answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_has_its_number_and_a_changed_one_is_detected() {
        for size in [MIN_LEN, MIN_LEN + 1, 1024] {
            let mut sent = data(0x0123_4567_89AB, size);
            assert_eq!(number(&sent), Some(0x0123_4567_89AB));
            assert_eq!(compare(0x0123_4567_89AB, size, &sent), Ok(()));
            if size > MIN_LEN {
                sent[MIN_LEN] ^= 1;
                let changed = compare(0x0123_4567_89AB, size, &sent).unwrap_err();
                assert_eq!(changed.at, MIN_LEN);
            }
        }
    }

    #[test]
    fn the_answer_of_another_program_is_not_an_echo() {
        for answer in [&b""[..], b"portolan", &[0; 100], b"PORTOLAN12345678"] {
            assert_eq!(number(answer), None);
        }
    }
}
