//! Time for the engines: monotonic, from the start of the stack.

#![allow(unsafe_code, reason = "reads the processor's counter of cycles")]

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

pub(crate) use crate::engine::as_nanos;

/// A time, also as one number, for those who compare it again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) time: Duration,
    pub(crate) ns: u64,
}

impl From<Duration> for Moment {
    #[inline]
    fn from(time: Duration) -> Self {
        let ns = as_nanos(time);
        Self { time, ns }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Timespec,
}

impl Clock {
    /// A clock that reads zero now.
    pub(crate) fn start() -> Self {
        Self { epoch: read() }
    }

    #[inline]
    pub(crate) fn now(self) -> Duration {
        self.since_start(read())
    }

    /// Time since the start, up to a few microseconds old.
    ///
    /// It may be earlier than a time that [`now`](Self::now) has returned before. It costs a fraction of `now`, which
    /// would take most of the time of polling an empty ring.
    #[inline]
    pub(crate) fn recent(self) -> Duration {
        self.since_start(recent::read_or_remember())
    }

    fn since_start(self, time: Timespec) -> Duration {
        let secs = time.tv_sec - self.epoch.tv_sec;
        let nanos = time.tv_nsec - self.epoch.tv_nsec;
        let (secs, nanos) = match nanos < 0 {
            true => (secs - 1, nanos + 1_000_000_000),
            false => (secs, nanos),
        };
        // A remembered time may be earlier than the start.
        match u64::try_from(secs) {
            Ok(secs) => Duration::new(secs, nanos as u32),
            Err(_) => Duration::ZERO,
        }
    }
}

#[inline]
fn read() -> Timespec {
    clock_gettime(ClockId::Monotonic)
}

#[cfg(target_arch = "x86_64")]
mod recent {
    use std::arch::x86_64::_rdtsc;
    use std::cell::Cell;

    use rustix::time::Timespec;

    use super::read;

    /// Cycles for which a time is remembered: 1 to 2 µs.
    const CYCLES_MAX: u64 = 4096;

    thread_local! {
        /// The cycle and the time of the last clock reading.
        static LAST: Cell<Option<(u64, Timespec)>> = const { Cell::new(None) };
    }

    /// Reads the clock if the last reading is more than [`CYCLES_MAX`] old; otherwise returns that reading.
    ///
    /// If the counter jumps, as on another processor or after a pause, the clock is read. If the counter stands still,
    /// the progress thread still handles timers and the hand-over between pollers.
    #[inline]
    pub(super) fn read_or_remember() -> Timespec {
        // SAFETY: every x86-64 processor has the instruction.
        let cycle = unsafe { _rdtsc() };
        let remembered = LAST.try_with(|last| match last.get() {
            Some((at, time)) if cycle.wrapping_sub(at) < CYCLES_MAX => time,
            _ => {
                let time = read();
                last.set(Some((cycle, time)));
                time
            }
        });
        // Thread locals may already be destroyed.
        remembered.unwrap_or_else(|_| read())
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod recent {
    pub(super) use super::read as read_or_remember;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recent_time_follows_the_clock_and_is_never_after_it() {
        let clock = Clock::start();
        let mut last = Duration::ZERO;
        for _ in 0..10_000 {
            let (recent, now) = (clock.recent(), clock.now());
            assert!(
                last <= recent && recent <= now,
                "{last:?} {recent:?} {now:?}"
            );
            last = recent;
        }
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(1));
        assert!(clock.recent() > before);
    }

    #[test]
    fn a_time_from_before_the_start_is_zero() {
        let early = Clock::start();
        early.recent();
        assert!(Clock::start().recent() <= early.now());
        let late = Clock {
            epoch: Timespec {
                tv_sec: read().tv_sec + 10,
                tv_nsec: 0,
            },
        };
        assert_eq!(late.recent(), Duration::ZERO);
    }
}
