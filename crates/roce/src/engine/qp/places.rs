//! A queue whose entries are written where they stay.

use alloc::vec::Vec;

/// Places of the first allocation.
const PLACES_MIN: usize = 4;

/// A queue, oldest entry first. Its places are used again, so an entry is never moved, except when the queue grows. What an
/// entry owns stays in its place until the next entry there replaces it.
#[derive(Debug)]
pub(super) struct Places<T> {
    /// As many as a power of two, or none.
    places: Vec<T>,
    first: usize,
    len: usize,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            first: 0,
            len: 0,
        }
    }
}

impl<T: Default> Places<T> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry at `index`, counted from the oldest.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        match index < self.len {
            true => self.places.get(self.at(index)),
            false => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let at = self.at(index);
        match index < self.len {
            true => self.places.get_mut(at),
            false => None,
        }
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The newest entry.
    #[inline]
    pub(super) fn back_mut(&mut self) -> Option<&mut T> {
        self.get_mut(self.len.wrapping_sub(1))
    }

    /// Appends an entry, and returns its place, which has an earlier entry until the caller writes the new one.
    #[inline(always)]
    pub(super) fn push(&mut self) -> Option<&mut T> {
        if self.len == self.places.len() {
            self.grow();
        }
        let at = self.at(self.len);
        let place = self.places.get_mut(at)?;
        self.len += 1;
        Some(place)
    }

    /// Removes the oldest entry.
    #[inline]
    pub(super) fn pop_front(&mut self) {
        if self.len > 0 {
            self.first = self.at(1);
            self.len -= 1;
        }
        if self.len == 0 {
            // The same few places, which are in the caches and have buffers, serve a queue that is often empty.
            self.first = 0;
        }
    }

    /// Removes the newest entry.
    pub(super) fn pop_back(&mut self) {
        self.len = self.len.saturating_sub(1);
    }

    #[inline]
    fn at(&self, index: usize) -> usize {
        self.first.wrapping_add(index) & self.places.len().wrapping_sub(1)
    }

    #[cold]
    fn grow(&mut self) {
        self.places.rotate_left(self.first);
        self.first = 0;
        let wanted = (2 * self.places.len()).max(PLACES_MIN);
        self.places.resize_with(wanted, T::default);
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in proptest::collection::vec(0..5u8, 0..300)) {
            let mut places = Places::<u32>::default();
            let mut model = VecDeque::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    0 => {
                        places.pop_front();
                        model.pop_front();
                    }
                    1 => {
                        places.pop_back();
                        model.pop_back();
                    }
                    _ => {
                        *places.push().unwrap() = number;
                        model.push_back(number);
                    }
                }
                prop_assert_eq!(places.len(), model.len());
                prop_assert_eq!(places.is_empty(), model.is_empty());
                prop_assert_eq!(places.front(), model.front());
                prop_assert_eq!(places.back_mut(), model.back_mut());
                for index in 0..=model.len() {
                    prop_assert_eq!(places.get(index), model.get(index));
                    prop_assert_eq!(places.get_mut(index), model.get_mut(index));
                }
            }
        }
    }
}
