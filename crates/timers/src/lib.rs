//! Deadlines, ordered by time. Each owner has at most one, so there are never more than owners and a
//! cancelled one leaves nothing behind.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::collections::BTreeSet;
use core::time::Duration;

/// Deadlines of owners that can be found by small keys.
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
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves `key`'s deadline from `armed`, where its owner remembers it, to `deadline`.
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

    /// Takes a key whose deadline is not after `now`. The owner must forget its deadline.
    pub fn pop_due(&mut self, now: Duration) -> Option<K> {
        let (deadline, _) = self.queue.first()?;
        if *deadline > now {
            return None;
        }
        self.queue.pop_first().map(|(_, key)| key)
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
