//! Hashing for the engine's tables.

use core::hash::{BuildHasher, BuildHasherDefault};

use portolan_provider::number_map::NumberHasher;
use siphasher::sip::SipHasher13;

/// A map whose hash a peer cannot predict.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, Keyed>;

/// A map keyed by numbers that no peer chooses.
pub(crate) type NumberMap<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// SipHash with a secret key. Peers choose their GUIDs, queue pair numbers and communication ids and could make them
/// collide in a fixed hash. The key comes from the engine's seed, so that a run can be repeated.
#[derive(Clone, Copy)]
pub(crate) struct Keyed {
    keys: (u64, u64),
}

impl Keyed {
    pub(crate) fn new(key0: u64, key1: u64) -> Self {
        Self { keys: (key0, key1) }
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.keys.0, self.keys.1)
    }
}

impl core::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keyed")
    }
}
