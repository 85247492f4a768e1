//! Objects that a listener holds for its peers, in order of arrival.

use std::collections::{BTreeMap, HashMap};

use portolan::provider::cm::IdNumber;

/// Values by id number and by age.
#[derive(Debug)]
pub(super) struct Held<T> {
    arrivals: HashMap<IdNumber, u64>,
    by_arrival: BTreeMap<u64, (IdNumber, T)>,
    arrived: u64,
}

impl<T> Held<T> {
    pub(super) fn new() -> Self {
        Self {
            arrivals: HashMap::new(),
            by_arrival: BTreeMap::new(),
            arrived: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn insert(&mut self, number: IdNumber, value: T) {
        self.remove(number);
        self.arrived += 1;
        self.arrivals.insert(number, self.arrived);
        self.by_arrival.insert(self.arrived, (number, value));
    }

    pub(super) fn remove(&mut self, number: IdNumber) -> Option<T> {
        let arrival = self.arrivals.remove(&number)?;
        Some(self.by_arrival.remove(&arrival)?.1)
    }

    /// Removes the oldest value.
    pub(super) fn remove_oldest(&mut self) -> Option<T> {
        let (_, (number, value)) = self.by_arrival.pop_first()?;
        self.arrivals.remove(&number);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_dropped_first_regardless_of_its_number() {
        let mut held = Held::new();
        for (number, value) in [(7, 'a'), (3, 'b'), (9, 'c'), (7, 'd')] {
            held.insert(IdNumber(number), value);
        }
        assert_eq!(held.len(), 3);
        assert_eq!(held.remove_oldest(), Some('b'));
        assert_eq!(held.remove(IdNumber(9)), Some('c'));
        assert_eq!(held.remove_oldest(), Some('d'));
        assert_eq!((held.remove_oldest(), held.len()), (None, 0));
    }
}
