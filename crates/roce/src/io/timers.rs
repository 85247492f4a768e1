//! Deadlines of queue pairs: one entry each, in order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_wire::Qpn;

use super::clock::as_nanos;

/// When queue pairs want to be called.
///
/// An entry may be earlier than what its queue pair wants by now: deadlines mostly move away, with
/// each acknowledgement, and following them would cost two operations per packet. Whoever is
/// called too early registers again.
#[derive(Debug)]
pub(super) struct Timers {
    entries: Mutex<BTreeSet<(Duration, Qpn)>>,
    /// The earliest, in nanoseconds, `u64::MAX` if there is none: readable without the lock.
    next_ns: AtomicU64,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self {
            entries: Mutex::default(),
            next_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Moves a queue pair's entry. True if it is now the earliest of all and was not before.
    pub(super) fn set(&self, qpn: Qpn, old: Option<Duration>, new: Option<Duration>) -> bool {
        let mut entries = self.lock();
        if let Some(old) = old {
            entries.remove(&(old, qpn));
        }
        if let Some(new) = new {
            entries.insert((new, qpn));
        }
        let before_ns = self.next_ns.load(Ordering::Relaxed);
        self.publish(&entries) < before_ns
    }

    /// Takes the earliest entry if it is due.
    pub(super) fn take_due(&self, now: Duration) -> Option<(Duration, Qpn)> {
        let mut entries = self.lock();
        let first = *entries.first()?;
        if first.0 > now {
            return None;
        }
        entries.pop_first();
        self.publish(&entries);
        Some(first)
    }

    /// When the earliest is due, nanoseconds of the stack's clock; `u64::MAX` if there is none.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::SeqCst)
    }

    fn publish(&self, entries: &BTreeSet<(Duration, Qpn)>) -> u64 {
        let next_ns = entries.first().map_or(u64::MAX, |(due, _)| as_nanos(*due));
        self.next_ns.store(next_ns, Ordering::SeqCst);
        next_ns
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(Duration, Qpn)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn due_entries_come_in_order_and_later_ones_stay() {
        let timers = Timers::new();
        assert!(timers.set(Qpn::new(1), None, Some(3 * MS)));
        assert!(timers.set(Qpn::new(2), None, Some(MS)));
        assert!(!timers.set(Qpn::new(3), None, Some(2 * MS)));
        assert_eq!(timers.take_due(Duration::ZERO), None);
        assert_eq!(timers.take_due(2 * MS), Some((MS, Qpn::new(2))));
        assert_eq!(timers.take_due(2 * MS), Some((2 * MS, Qpn::new(3))));
        assert_eq!(timers.take_due(2 * MS), None);
        assert_eq!(timers.next_ns(), as_nanos(3 * MS));
    }

    #[test]
    fn a_queue_pair_has_one_entry_however_often_it_moves() {
        let timers = Timers::new();
        let mut old = None;
        for step in (1..1000).rev() {
            let new = Some(step * MS);
            assert!(timers.set(Qpn::new(7), old, new));
            old = new;
        }
        assert_eq!(timers.lock().len(), 1);
        timers.set(Qpn::new(7), old, None);
        assert_eq!(timers.next_ns(), u64::MAX);
    }
}
