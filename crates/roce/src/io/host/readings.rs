//! Requests to read the interfaces, which the progress thread serves.

use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::{Condvar, Mutex};

/// Requests to read the interfaces.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    counts: Mutex<Counts>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    asked: u64,
    done: u64,
}

impl Readings {
    /// Requests a reading and returns its number.
    pub(crate) fn ask(&self) -> u64 {
        let mut counts = self.counts.lock();
        counts.asked += 1;
        counts.asked
    }

    /// The latest request that is not served yet.
    pub(crate) fn wanted(&self) -> Option<u64> {
        let counts = self.counts.lock();
        (counts.asked > counts.done).then_some(counts.asked)
    }

    /// Reports that a reading is complete that began after request `number`.
    pub(crate) fn finish(&self, number: u64) {
        let mut counts = self.counts.lock();
        counts.done = counts.done.max(number);
        self.done.notify_all();
    }

    /// Waits until the request is served.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(crate) fn wait(&self, number: u64, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut counts = self.counts.lock();
        while counts.done < number {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (after_ms, retries) = (timeout.as_millis() as u64, 0);
                let cause = Cause::TimedOut { after_ms, retries };
                return Err(Error::new(Step::OpenDevice, cause));
            }
            counts = self.done.wait_timeout(counts, left).0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_serves_only_requests_from_before_it_began() {
        let readings = Readings::default();
        assert_eq!(readings.wanted(), None);
        let first = readings.ask();
        let began = readings.wanted().unwrap();
        let later = readings.ask();
        readings.finish(began);
        readings.wait(first, Duration::ZERO).unwrap();
        let waited = readings.wait(later, Duration::from_millis(1));
        assert!(matches!(waited.unwrap_err().cause, Cause::TimedOut { .. }));
        assert_eq!(readings.wanted(), Some(later));
        readings.finish(later);
        readings.wait(later, Duration::ZERO).unwrap();
        assert_eq!(readings.wanted(), None);
    }
}
