//! Communication ids that are not reused soon.

use core::hash::BuildHasher;

use crate::hash::Keyed;

/// Bits of a communication id beneath its block.
const BITS: u32 = 24;
const HALF_BITS: u32 = BITS / 2;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
/// Four rounds of random functions make a Feistel network a strong permutation (Luby and Rackoff).
const ROUNDS: u8 = 4;

/// Yields every number below 2^24 once before it repeats any, in an order that a peer cannot predict: a counter passed
/// through a keyed permutation.
///
/// A peer remembers the communication ids of closed connections. It treats a request with one of these ids as stale
/// (IBTA 12.9.8.3.1). Random ids would collide soon: with 10,000 ids remembered, 1,000 new connections have even odds
/// of one collision.
#[derive(Debug)]
pub(crate) struct CommIds {
    keyed: Keyed,
    next: u32,
}

impl CommIds {
    pub(crate) fn new(keyed: Keyed, first: u32) -> Self {
        Self { keyed, next: first }
    }

    pub(crate) fn draw(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        (0..ROUNDS).fold(number & ((1 << BITS) - 1), |number, round| {
            let (left, right) = (number >> HALF_BITS, number & HALF_MASK);
            let mixed = self.keyed.hash_one((round, right)) as u32 & HALF_MASK;
            right << HALF_BITS | (left ^ mixed)
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn every_number_is_drawn_once_before_one_repeats() {
        let mut ids = CommIds::new(Keyed::new(1, 2), u32::MAX - 5);
        let first = ids.draw();
        let mut drawn = vec![false; 1 << BITS];
        drawn[first as usize] = true;
        for _ in 1..1 << BITS {
            let id = ids.draw() as usize;
            assert!(!drawn[id], "{id} came twice");
            drawn[id] = true;
        }
        assert_eq!(ids.draw(), first);
    }

    #[test]
    fn the_order_depends_on_the_key() {
        let draw = |key| {
            let mut ids = CommIds::new(Keyed::new(key, 0), 0);
            [ids.draw(), ids.draw(), ids.draw()]
        };
        assert_ne!(draw(1), draw(2));
    }
}
