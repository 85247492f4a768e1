//! A queue that is emptied again and again.

use alloc::vec::Vec;

/// A queue that is emptied again and again, so that what it contains need not wrap around.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    /// What was added since it was last empty. The first `taken` are taken.
    entries: Vec<T>,
    taken: usize,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            taken: 0,
        }
    }
}

impl<T: Copy> Fifo<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // The last one to be taken empties the vector.
        self.entries.is_empty()
    }

    /// All, oldest first.
    #[inline]
    pub(super) fn all(&self) -> &[T] {
        self.entries.get(self.taken..).unwrap_or_default()
    }

    /// As [`all`](Self::all), to change them.
    pub(super) fn all_mut(&mut self) -> &mut [T] {
        self.entries.get_mut(self.taken..).unwrap_or_default()
    }

    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(entry);
    }

    /// Moves the entries to the start instead of growing without bound, if it never gets empty.
    #[cold]
    fn make_room(&mut self) {
        self.entries.drain(..self.taken);
        self.taken = 0;
        self.entries.reserve(1);
    }

    /// Removes the oldest `count`.
    #[inline]
    pub(super) fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.entries.len() {
            self.entries.clear();
            self.taken = 0;
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let oldest = self.all().first().copied();
        if oldest.is_some() {
            self.take(1);
        }
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_in_order_and_leave_their_room_although_it_never_gets_empty() {
        let mut fifo = Fifo::default();
        fifo.push(0);
        for number in 1..1000 {
            fifo.push(number);
            assert_eq!(fifo.all(), [number - 1, number]);
            assert_eq!(fifo.pop(), Some(number - 1));
        }
        assert!(fifo.entries.capacity() < 100);
        assert!(!fifo.is_empty());
        fifo.take(1);
        assert!(fifo.is_empty());
        assert_eq!(fifo.pop(), None);
    }
}
