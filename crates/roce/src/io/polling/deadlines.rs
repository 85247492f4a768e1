//! The next timeout of each queue pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_threads::lock::Mutex;
use portolan_timers::Timers;
use portolan_wire::Qpn;

use crate::io::polling::clock::as_nanos;

/// The deadlines of queue pairs.
///
/// A stored deadline may be earlier than the queue pair's current one. Each acknowledgement moves the deadline later,
/// and updating the table each time would cost two operations per packet. A call that comes too early stores the
/// current deadline.
#[derive(Debug)]
pub(crate) struct Deadlines {
    timers: Mutex<Timers<Qpn>>,
    /// The earliest deadline in nanoseconds, or `u64::MAX`. Readable without the lock.
    next_ns: AtomicU64,
}

impl Deadlines {
    pub(crate) fn new() -> Self {
        Self {
            timers: Mutex::default(),
            next_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Moves a queue pair's deadline from `armed`. Returns true if it has become the earliest of all.
    pub(crate) fn set(
        &self,
        qpn: Qpn,
        armed: &mut Option<Duration>,
        deadline: Option<Duration>,
    ) -> bool {
        let mut timers = self.timers.lock();
        timers.set(qpn, armed, deadline);
        let before_ns = self.next_ns.load(Ordering::Relaxed);
        self.publish(&timers) < before_ns
    }

    /// Removes and returns the earliest deadline if it is due.
    pub(crate) fn take_due(&self, now: Duration) -> Option<(Duration, Qpn)> {
        let mut timers = self.timers.lock();
        let due = timers.take_due(now)?;
        self.publish(&timers);
        Some(due)
    }

    /// The earliest deadline, nanoseconds of the stack's clock, or `u64::MAX`.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::SeqCst)
    }

    fn publish(&self, timers: &Timers<Qpn>) -> u64 {
        let next_ns = timers.next().map_or(u64::MAX, as_nanos);
        self.next_ns.store(next_ns, Ordering::SeqCst);
        next_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_earliest_is_known_without_the_lock_and_setters_learn_whether_theirs_is_the_earliest() {
        let deadlines = Deadlines::new();
        assert!(deadlines.set(Qpn::new(1), &mut None, Some(3 * MS)));
        assert!(deadlines.set(Qpn::new(2), &mut None, Some(MS)));
        assert!(!deadlines.set(Qpn::new(3), &mut None, Some(2 * MS)));
        assert_eq!(deadlines.next_ns(), as_nanos(MS));
        assert_eq!(deadlines.take_due(Duration::ZERO), None);
        assert_eq!(deadlines.take_due(2 * MS), Some((MS, Qpn::new(2))));
        assert_eq!(deadlines.take_due(2 * MS), Some((2 * MS, Qpn::new(3))));
        assert_eq!(deadlines.next_ns(), as_nanos(3 * MS));
        deadlines.set(Qpn::new(1), &mut Some(3 * MS), None);
        assert_eq!(deadlines.next_ns(), u64::MAX);
    }
}
