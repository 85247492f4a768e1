//! A queue that is often empty.

use alloc::vec::Vec;

/// A queue that is often empty, and then starts over. So its entries need not wrap around, which would cost more for each.
/// One that never gets empty moves its entries now and then, and may take up to four times their memory.
#[derive(Debug)]
pub(in crate::engine) struct Fifo<T> {
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
    pub(in crate::engine) fn is_empty(&self) -> bool {
        // The last one to be taken empties the vector.
        self.entries.is_empty()
    }

    /// All, oldest first.
    #[inline]
    pub(in crate::engine) fn all(&self) -> &[T] {
        &self.entries[self.taken..]
    }

    /// As [`all`](Self::all), to change them.
    pub(in crate::engine) fn all_mut(&mut self) -> &mut [T] {
        &mut self.entries[self.taken..]
    }

    #[inline]
    pub(in crate::engine) fn len(&self) -> usize {
        self.entries.len() - self.taken
    }

    #[inline]
    pub(in crate::engine) fn push(&mut self, entry: T) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(entry);
    }

    /// Moves the entries to the start if that makes much room, so that it does not grow without bound.
    #[cold]
    fn make_room(&mut self) {
        if self.taken > self.entries.len() / 2 {
            self.start_over();
        }
        self.entries.reserve(1);
    }

    fn start_over(&mut self) {
        self.entries.drain(..self.taken);
        self.taken = 0;
    }

    /// Keeps only those that `keeps` returns true for.
    pub(in crate::engine) fn retain(&mut self, keeps: impl FnMut(&T) -> bool) {
        self.start_over();
        self.entries.retain(keeps);
    }

    /// Gives memory back, but keeps room for `count`.
    pub(in crate::engine) fn shrink_to(&mut self, count: usize) {
        self.start_over();
        self.entries.shrink_to(count);
    }

    #[inline]
    pub(in crate::engine) fn clear(&mut self) {
        self.entries.clear();
        self.taken = 0;
    }

    #[inline]
    pub(in crate::engine) fn oldest(&self) -> Option<&T> {
        self.entries.get(self.taken)
    }

    /// Removes the oldest, if there is one.
    #[inline]
    pub(in crate::engine) fn remove_oldest(&mut self) {
        self.taken += 1;
        if self.taken >= self.entries.len() {
            self.clear();
        }
    }

    pub(in crate::engine) fn pop(&mut self) -> Option<T> {
        let oldest = *self.oldest()?;
        self.remove_oldest();
        Some(oldest)
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
            assert_eq!(fifo.len(), 2);
            assert_eq!(fifo.pop(), Some(number - 1));
        }
        assert!(fifo.entries.capacity() < 100);
        assert!(!fifo.is_empty());
        fifo.retain(|number| *number != 999);
        assert!(fifo.is_empty());
        assert_eq!(fifo.pop(), None);
    }
}
