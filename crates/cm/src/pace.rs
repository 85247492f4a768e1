//! Pacing: limits how many messages leave at once.
//!
//! A program that opens thousands of connections at once would overrun the socket buffers of its peers, and all lost
//! messages would be retransmitted together. So messages leave in bursts, an interval apart. Smaller bursts are never
//! delayed.

use core::time::Duration;

/// Allows a burst of messages in each interval.
#[derive(Debug)]
pub(crate) struct Pace {
    burst: u32,
    interval: Duration,
    /// Number of messages still allowed in this interval.
    allowance: u32,
    interval_began: Duration,
}

impl Pace {
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        let burst = burst.max(1);
        Self {
            burst,
            interval,
            allowance: burst,
            interval_began: Duration::ZERO,
        }
    }

    /// Returns whether a message may leave now, and counts it if so.
    pub(crate) fn allow(&mut self) -> bool {
        let allowed = self.allowance > 0;
        self.allowance = self.allowance.saturating_sub(1);
        allowed
    }

    /// When delayed messages may leave; `None` if none are delayed.
    pub(crate) fn resumes_at(&self) -> Option<Duration> {
        (self.allowance == 0).then(|| self.interval_began.saturating_add(self.interval))
    }

    /// Starts the next interval if it is due.
    pub(crate) fn refresh(&mut self, now: Duration) {
        if now >= self.interval_began.saturating_add(self.interval) {
            self.interval_began = now;
            self.allowance = self.burst;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_waits_for_the_next_interval() {
        let interval = Duration::from_millis(1);
        let mut pace = Pace::new(2, interval);
        let now = Duration::from_secs(1);
        pace.refresh(now);
        assert_eq!(
            [pace.allow(), pace.allow(), pace.allow()],
            [true, true, false]
        );
        assert_eq!(pace.resumes_at(), Some(now + interval));
        pace.refresh(now + interval / 2);
        assert!(!pace.allow());
        pace.refresh(now + interval);
        assert!(pace.allow());
        assert_eq!(pace.resumes_at(), None);
    }
}
