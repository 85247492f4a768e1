//! Maps keyed by numbers that the kernel or this library assigns.
//!
//! No attacker can choose such numbers to collide. The standard library's hash resists chosen
//! collisions and costs several times as much.

#[cfg(feature = "std")]
use core::hash::BuildHasherDefault;
use core::hash::Hasher;
#[cfg(feature = "std")]
use std::collections::{HashMap, HashSet};

/// A map keyed by assigned numbers.
#[cfg(feature = "std")]
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;
/// A set of assigned numbers.
#[cfg(feature = "std")]
pub type NumberSet<K> = HashSet<K, BuildHasherDefault<NumberHasher>>;

/// 2^64 divided by the golden ratio, which spreads consecutive numbers far apart.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes a number by one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(FACTOR);
        // The low half of the product depends on the number's low bits, the high half on its high
        // bits.
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;
    use crate::cm::{IdNumber, UserId};

    fn hash(of: impl std::hash::Hash) -> u64 {
        BuildHasherDefault::<NumberHasher>::default().hash_one(of)
    }

    #[test]
    fn numbers_in_a_row_and_numbers_far_apart_fall_into_different_places() {
        const PLACES: u64 = 1 << 16;
        for stride in [1, 1 << 8, 1 << 24, 1 << 32, 1 << 48] {
            let places = (0..1000).map(|number| hash(UserId(number * stride)) % PLACES);
            let different: HashSet<u64> = places.collect();
            assert!(different.len() > 900, "{stride}: {}", different.len());
        }
    }

    #[test]
    fn an_inserted_value_is_found_by_its_number() {
        let map: NumberMap<IdNumber, u32> = (0..1000).map(|n| (IdNumber(n), n)).collect();
        assert!((0..1000).all(|n| map.get(&IdNumber(n)) == Some(&n)));
        assert_eq!(map.get(&IdNumber(1000)), None);
    }
}
