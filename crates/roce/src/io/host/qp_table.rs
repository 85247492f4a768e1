//! Queue pairs by number.

use std::collections::VecDeque;
use std::sync::Arc;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::{Mutex, RwLock};
use portolan_wire::Qpn;

/// Bits of a queue pair number below the block byte.
const LOW_BITS: u32 = 16;
/// Shards, each with its own lock, so that threads that receive for different queue pairs do not contend. The low
/// byte of the number selects the shard.
const SHARDS: usize = 256;
const SLOTS: usize = (1 << LOW_BITS) / SHARDS;
/// A number is not reused until this many other queue pairs are destroyed. If the peer still has the old connection,
/// even in time-wait (IBTA 12.9.8.3.1), it rejects a request from the same number as stale. Time-wait lasts about two
/// seconds. If hardly any number is free, the one that has rested longest is reused.
const RESTING_MAX: usize = 1 << 14;
/// Attempts to draw a free number. With the table full, which leaves an eighth of the numbers, and none of them resting, all
/// attempts fail with a probability of 10^-15.
const DRAWS_MAX: u32 = 256;

/// The queue pairs of this process. All their numbers begin with its block.
#[derive(Debug)]
pub(crate) struct QpTable<T> {
    block: u8,
    shards: Box<[RwLock<Shard<T>>]>,
    /// Numbers that may not be reused yet, oldest first. Locked while no shard is locked.
    resting: Mutex<VecDeque<Qpn>>,
}

#[derive(Debug)]
struct Shard<T> {
    /// Empty until the first queue pair, then `SLOTS` long.
    slots: Vec<Option<Arc<T>>>,
    /// A bit for each slot whose number may not be reused yet.
    resting: [u64; SLOTS / u64::BITS as usize],
}

impl<T> QpTable<T> {
    /// With more queue pairs, drawing a free number would take too long.
    pub(crate) const LIMIT: usize = (1 << LOW_BITS) - (1 << (LOW_BITS - 3));

    pub(crate) fn new(block: u8) -> Self {
        Self {
            block,
            shards: (0..SHARDS).map(|_| RwLock::new(Shard::new())).collect(),
            resting: Mutex::default(),
        }
    }

    /// Inserts a queue pair at a free number. `draw` returns random bits; `make` creates the queue pair for a number.
    pub(crate) fn insert(
        &self,
        mut draw: impl FnMut() -> Result<u32>,
        make: impl FnOnce(Qpn) -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        for attempt in 0..=DRAWS_MAX {
            let qpn = match attempt {
                DRAWS_MAX => match self.wake_oldest() {
                    Some(qpn) => qpn,
                    None => break,
                },
                _ => {
                    let low = draw()? & ((1 << LOW_BITS) - 1);
                    Qpn::new(u32::from(self.block) << LOW_BITS | low)
                }
            };
            let (shard, slot) = place(qpn);
            let Some(shard) = self.shards.get(shard) else {
                continue;
            };
            let mut shard = shard.write();
            if let Some(free) = shard.free(slot) {
                let qp = make(qpn)?;
                *free = Some(Arc::clone(&qp));
                return Ok(qp);
            }
        }
        let limit = Self::LIMIT as u64;
        Err(Error::new(
            Step::CreateQp,
            Cause::LimitReached {
                what: "queue pairs",
                limit,
            },
        ))
    }

    /// The number that has rested longest, which may be used again from now on.
    fn wake_oldest(&self) -> Option<Qpn> {
        let oldest = self.resting.lock().pop_front()?;
        self.rest(oldest, false);
        Some(oldest)
    }

    #[inline]
    pub(crate) fn find(&self, qpn: Qpn) -> Option<Arc<T>> {
        if qpn.value() >> LOW_BITS != u32::from(self.block) {
            return None;
        }
        let (shard, slot) = place(qpn);
        let shard = self.shards.get(shard)?.read();
        shard.slots.get(slot)?.clone()
    }

    /// All queue pairs, for events that concern all. Scans every slot.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let shards = self.shards.iter().flat_map(|shard| {
            let shard = shard.read();
            shard.slots.iter().flatten().cloned().collect::<Vec<_>>()
        });
        shards.collect()
    }

    /// Removes a queue pair. Its number is not reused for a while.
    pub(crate) fn remove(&self, qpn: Qpn) {
        self.rest(qpn, true);
        let rested = {
            let mut resting = self.resting.lock();
            resting.push_back(qpn);
            if resting.len() > RESTING_MAX {
                resting.pop_front()
            } else {
                None
            }
        };
        if let Some(rested) = rested {
            self.rest(rested, false);
        }
    }

    fn rest(&self, qpn: Qpn, rests: bool) {
        let (shard, slot) = place(qpn);
        if let Some(shard) = self.shards.get(shard) {
            let mut shard = shard.write();
            if rests && let Some(slot) = shard.slots.get_mut(slot) {
                *slot = None;
            }
            shard.set_resting(slot, rests);
        }
    }
}

impl<T> Shard<T> {
    fn new() -> Self {
        Self {
            slots: Vec::new(),
            resting: [0; SLOTS / u64::BITS as usize],
        }
    }

    /// The slot, if it is free and its number may be reused.
    fn free(&mut self, slot: usize) -> Option<&mut Option<Arc<T>>> {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let rests = self.resting.get(slot / 64)? >> (slot % 64) & 1 == 1;
        let free = self.slots.get_mut(slot)?;
        (free.is_none() && !rests).then_some(free)
    }

    fn set_resting(&mut self, slot: usize, rests: bool) {
        if let Some(word) = self.resting.get_mut(slot / 64) {
            let bit = 1 << (slot % 64);
            *word = if rests { *word | bit } else { *word & !bit };
        }
    }
}

fn place(qpn: Qpn) -> (usize, usize) {
    let low = (qpn.value() & ((1 << LOW_BITS) - 1)) as usize;
    (low % SHARDS, low / SHARDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_with_the_block_and_find_their_queue_pair_until_it_is_removed() {
        let table = QpTable::<Qpn>::new(7);
        let mut bits = [0xabcd_1234, 0xffff_1234, 5].into_iter();
        let mut draw = || Ok(bits.next().unwrap());
        let first = table.insert(&mut draw, |qpn| Ok(Arc::new(qpn))).unwrap();
        assert_eq!(*first, Qpn::new(0x07_1234));
        let second = table.insert(&mut draw, |qpn| Ok(Arc::new(qpn))).unwrap();
        assert_eq!(
            *second,
            Qpn::new(0x07_0005),
            "a used number was allocated again"
        );
        assert_eq!(table.find(*first), Some(Arc::clone(&first)));
        assert_eq!(
            table.find(Qpn::new(0x08_1234)),
            None,
            "another process's number was found"
        );
        assert_eq!(table.all().len(), 2);
        assert_eq!(table.find(*second), Some(second));
        table.remove(*first);
        assert_eq!(table.find(*first), None);
    }

    #[test]
    fn a_number_is_reused_only_after_enough_others() {
        let table = QpTable::<Qpn>::new(1);
        let insert = |low: u32| table.insert(|| Ok(low), |qpn| Ok(Arc::new(qpn)));
        table.remove(*insert(0xffff).unwrap());
        for other in 0..RESTING_MAX as u32 {
            assert!(
                rests(&table, 0xffff),
                "it may be reused after {other} others"
            );
            table.remove(*insert(other).unwrap());
        }
        assert_eq!(*insert(0xffff).unwrap(), Qpn::new(0x01_ffff));
        assert!(rests(&table, 0), "the next one must still be unavailable");
    }

    fn rests(table: &QpTable<Qpn>, low: u32) -> bool {
        let (shard, slot) = place(Qpn::new(low));
        table.shards[shard].write().free(slot).is_none()
    }

    #[test]
    fn if_no_number_is_free_the_one_that_has_rested_longest_is_reused() {
        let table = QpTable::<Qpn>::new(1);
        let insert = |low: u32| table.insert(|| Ok(low), |qpn| Ok(Arc::new(qpn)));
        let [first, second] = [5, 6].map(|low| *insert(low).unwrap());
        table.remove(first);
        table.remove(second);
        insert(9).unwrap();
        assert_eq!(*insert(9).unwrap(), first);
        assert_eq!(*insert(9).unwrap(), second);
        assert!(insert(9).is_err());
    }

    #[test]
    fn a_table_takes_as_many_queue_pairs_as_its_limit_also_after_others() {
        let table = QpTable::<Qpn>::new(1);
        // Knuth's MMIX generator.
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            Ok((state >> 33) as u32)
        };
        for _ in 0..2 {
            let made = (0..QpTable::<Qpn>::LIMIT)
                .map(|_| *table.insert(&mut draw, |qpn| Ok(Arc::new(qpn))).unwrap());
            let made: Vec<Qpn> = made.collect();
            for qpn in made {
                table.remove(qpn);
            }
        }
    }

    #[test]
    fn a_full_table_is_an_error() {
        let table = QpTable::<Qpn>::new(1);
        table.insert(|| Ok(9), |qpn| Ok(Arc::new(qpn))).unwrap();
        let full = table.insert(|| Ok(9), |qpn| Ok(Arc::new(qpn))).unwrap_err();
        assert!(matches!(full.cause, Cause::LimitReached { .. }), "{full}");
    }
}
