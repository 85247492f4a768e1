//! Time for the engines: monotonic, from the start of the stack.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Timespec,
}

impl Clock {
    /// A clock that reads zero now.
    pub(crate) fn start() -> Self {
        Self {
            epoch: clock_gettime(ClockId::Monotonic),
        }
    }

    #[inline]
    pub(crate) fn now(self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        let secs = now.tv_sec - self.epoch.tv_sec;
        let nanos = now.tv_nsec - self.epoch.tv_nsec;
        let (secs, nanos) = match nanos < 0 {
            true => (secs - 1, nanos + 1_000_000_000),
            false => (secs, nanos),
        };
        // The clock does not go back.
        Duration::new(secs.unsigned_abs(), nanos as u32)
    }
}

/// Nanoseconds for an atomic; saturates after 584 years.
#[inline]
pub(crate) fn as_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
