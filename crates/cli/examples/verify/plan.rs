//! The cases of a run: every operation, by each side, of every size.

use super::message::{Initiator, Kind, LENGTH_MAX, Message, Operation, Outcome, WORD};

/// Default sizes: all powers of two up to the longest message of rdma_rxe, the sizes around full packets of the
/// usual path MTUs, and odd ones.
pub(super) const SIZES: [u32; 40] = [
    1, 2, 3, 4, 5, 7, 8, 9, 16, 32, 63, 64, 65, 128, 255, 256, 512, 1000, 1023, 1024, 1025, 2048,
    4095, 4096, 4097, 8192, 10_007, 16_384, 32_768, 65_535, 65_536, 65_537, 131_072, 262_144,
    524_288, 1_000_003, 1_048_576, 2_097_152, 4_194_304, LENGTH_MAX,
];

/// Offsets of atomics, from the beginning of the asked side's memory to its end.
const ATOMIC_OFFSETS: [u32; 6] = [0, WORD, 4096 - WORD, 4096, 1 << 20, LENGTH_MAX - WORD];

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) operation: Operation,
    pub(super) initiator: Initiator,
    /// Bytes of data.
    pub(super) length: u32,
    /// For an atomic: offset of its word.
    pub(super) offset: u32,
    /// For compare-swap: whether the comparison must succeed.
    pub(super) is_equal: bool,
}

impl Case {
    /// The request for it. Data and operands are derived from the case's number.
    pub(super) fn request(&self, number: u64) -> Message {
        // An addition wraps around for about every second number.
        let seed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let operand = match self.operation {
            Operation::CompareSwap if self.is_equal => seed,
            _ => seed.rotate_left(17) | 1 << 63,
        };
        Message {
            kind: Kind::Request,
            operation: self.operation,
            initiator: self.initiator,
            outcome: Outcome::Right,
            length: self.length,
            rkey: 0,
            addr: 0,
            seed,
            operand,
            swap: !seed,
            offset: self.offset.into(),
        }
    }
}

/// The cases of a run, in order. The sizes apply to all operations except atomics, which have a fixed size and
/// run at several offsets instead.
pub(super) fn cases(operations: &[Operation], sizes: &[u32]) -> Vec<Case> {
    let initiators = [Initiator::Asker, Initiator::Asked];
    let of = |operation: Operation, initiator| {
        let case = move |length, offset, is_equal| Case {
            operation,
            initiator,
            length,
            offset,
            is_equal,
        };
        let each: Vec<Case> = match operation {
            Operation::CompareSwap => ATOMIC_OFFSETS
                .iter()
                .flat_map(|offset| [true, false].map(|is_equal| case(WORD, *offset, is_equal)))
                .collect(),
            Operation::FetchAdd => ATOMIC_OFFSETS
                .iter()
                .map(|offset| case(WORD, *offset, true))
                .collect(),
            _ => sizes.iter().map(|size| case(*size, 0, true)).collect(),
        };
        each
    };
    operations
        .iter()
        .flat_map(|operation| initiators.map(|initiator| of(*operation, initiator)))
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_carry_out_every_operation_of_every_size() {
        let all = cases(&[Operation::Read, Operation::CompareSwap], &SIZES);
        assert_eq!(all.len(), 2 * SIZES.len() + 2 * 2 * ATOMIC_OFFSETS.len());
        for initiator in [Initiator::Asker, Initiator::Asked] {
            for length in SIZES {
                let is_it = |case: &&Case| case.length == length && case.initiator == initiator;
                assert!(
                    all.iter()
                        .filter(is_it)
                        .any(|case| case.operation == Operation::Read)
                );
            }
        }
    }

    #[test]
    fn a_comparison_fails_when_it_must_and_no_seed_is_used_twice() {
        let case = |is_equal| Case {
            operation: Operation::CompareSwap,
            initiator: Initiator::Asker,
            length: WORD,
            offset: 0,
            is_equal,
        };
        for number in 0..1000 {
            let [equal, other] = [true, false].map(|is_equal| case(is_equal).request(number));
            assert!(equal.operand == equal.seed && other.operand != other.seed);
            assert_ne!(equal.seed, case(true).request(number + 1).seed);
        }
    }

    #[test]
    fn sizes_go_up_to_the_longest_message_by_all_powers_of_two() {
        assert!(SIZES.is_sorted());
        for exponent in 0..=LENGTH_MAX.ilog2() {
            assert!(SIZES.contains(&(1 << exponent)), "2^{exponent}");
        }
        assert_eq!(SIZES.last(), Some(&LENGTH_MAX));
    }
}
