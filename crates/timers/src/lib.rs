//! Deadlines of many owners, ordered by time.
//!
//! Each owner has at most one deadline, so there are never more deadlines than owners, and
//! cancelling one removes it at once.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::collections::BTreeSet;
use core::time::Duration;

/// A set of deadlines keyed by owner.
#[derive(Debug)]
pub struct Timers<K> {
    queue: BTreeSet<(Duration, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord> Timers<K> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes `key`'s deadline to `deadline` and stores it in `armed`, which the owner keeps and
    /// which must hold the current one.
    pub fn set(&mut self, key: K, armed: &mut Option<Duration>, deadline: Option<Duration>) {
        if let Some(old) = armed.take() {
            self.queue.remove(&(old, key));
        }
        if let Some(new) = deadline {
            self.queue.insert((new, key));
        }
        *armed = deadline;
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Duration> {
        self.queue.first().map(|(deadline, _)| *deadline)
    }

    /// Removes and returns a key whose deadline is at or before `now`. The owner must then clear
    /// its stored deadline.
    pub fn pop_due(&mut self, now: Duration) -> Option<K> {
        self.take_due(now).map(|(_, key)| key)
    }

    /// Like [`pop_due`](Self::pop_due), but also returns the deadline, because the owner may have changed it since.
    pub fn take_due(&mut self, now: Duration) -> Option<(Duration, K)> {
        let (deadline, _) = self.queue.first()?;
        if *deadline > now {
            return None;
        }
        self.queue.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_fires_once_and_at_its_new_time() {
        let (mut timers, mut armed) = (Timers::new(), None);
        timers.set(7u32, &mut armed, Some(Duration::from_millis(5)));
        timers.set(7u32, &mut armed, Some(Duration::from_millis(9)));
        assert_eq!(timers.next(), Some(Duration::from_millis(9)));
        assert_eq!(timers.pop_due(Duration::from_millis(8)), None);
        assert_eq!(timers.pop_due(Duration::from_millis(9)), Some(7));
        assert_eq!(timers.next(), None);
    }
}
