//! Keepalive timing of an idle connection: when to probe the peer, and when to give up.

use std::time::{Duration, Instant};

/// Keepalive of a silent peer, which RDMA itself lacks.
///
/// If the connection is idle and nothing has arrived for `interval`, it probes the peer with an
/// RDMA write of zero bytes (as rsockets does). The peer's device acknowledges it without its
/// program. Posted sends, writes, reads and atomics need no probe: the queue pair's own retries end them.
///
/// Probes are sent while a thread or task waits on the connection; otherwise at the next wait.
///
/// ```
/// use portolan::{Keepalive, Options};
/// use std::time::Duration;
///
/// let keepalive = Keepalive::new(Duration::from_secs(5), Duration::from_secs(30));
/// let options = Options::default().keepalive(keepalive);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keepalive {
    /// Time without traffic before a probe; 1 ms to a day.
    pub interval: Duration,
    /// Time limit of the device's answer; 1 ms to a day. It includes the queue pair's retries: if
    /// it is shorter than all of them, it may end a connection that would have survived on a busy
    /// network.
    pub timeout: Duration,
}

impl Keepalive {
    /// Creates the settings: the time without traffic before a probe, and the time limit of its answer.
    pub const fn new(interval: Duration, timeout: Duration) -> Self {
        Self { interval, timeout }
    }

    /// The valid range of both times.
    pub(crate) const RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);
}

/// The work request id of a probe. Other work uses its slot's key, which is smaller.
pub(super) const PROBE: u64 = u64::MAX;

/// What is known about the peer.
#[derive(Debug)]
pub(super) struct Silence {
    settings: Keepalive,
    /// When something last arrived from the peer, including acknowledgements.
    last_arrival: Instant,
    /// When the pending probe was sent; `None` without one.
    probed: Option<Instant>,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Wait until this time.
    Until(Instant),
    /// Send a probe and check again.
    Probe,
    /// The peer was silent for this long: the connection is over.
    Silent(Duration),
}

impl Silence {
    pub(super) fn new(settings: Keepalive, now: Instant) -> Self {
        Self {
            settings,
            last_arrival: now,
            probed: None,
        }
    }

    /// Records that something arrived from the peer.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.last_arrival = now;
    }

    /// Records that the probe completed.
    pub(super) fn probe_completed(&mut self) {
        self.probed = None;
    }

    /// The next step. `is_working` is true while sends are posted: the queue pair's own retries
    /// watch the peer then.
    pub(super) fn check(&mut self, now: Instant, is_working: bool) -> Look {
        let Keepalive { interval, timeout } = self.settings;
        if let Some(probed) = self.probed {
            let end = probed.max(self.last_arrival) + timeout;
            return match now < end {
                true => Look::Until(end),
                false => Look::Silent(now - self.last_arrival),
            };
        }
        let due = self.last_arrival + interval;
        if now < due {
            return Look::Until(due);
        }
        if is_working {
            return Look::Until(now + interval);
        }
        self.probed = Some(now);
        Look::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Keepalive = Keepalive {
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(2),
    };

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn a_silent_peer_is_probed_once_and_given_up_after_the_response_time() {
        let start = Instant::now();
        let mut silence = Silence::new(SETTINGS, start);
        assert_eq!(silence.check(start, false), Look::Until(start + seconds(5)));
        assert_eq!(silence.check(start + seconds(5), false), Look::Probe);
        let end = start + seconds(7);
        assert_eq!(silence.check(start + seconds(6), false), Look::Until(end));
        assert_eq!(silence.check(end, false), Look::Silent(seconds(7)));
    }

    #[test]
    fn an_answer_begins_another_interval() {
        let start = Instant::now();
        let mut silence = Silence::new(SETTINGS, start);
        assert_eq!(silence.check(start + seconds(5), false), Look::Probe);
        silence.probe_completed();
        silence.arrived(start + seconds(6));
        let next = start + seconds(11);
        assert_eq!(silence.check(start + seconds(7), false), Look::Until(next));
        assert_eq!(silence.check(next, false), Look::Probe);
    }

    #[test]
    fn a_peer_that_sends_anything_is_not_given_up_even_if_its_answer_is_late() {
        let start = Instant::now();
        let mut silence = Silence::new(SETTINGS, start);
        assert_eq!(silence.check(start + seconds(5), false), Look::Probe);
        silence.arrived(start + seconds(6));
        let end = start + seconds(8);
        assert_eq!(silence.check(start + seconds(7), false), Look::Until(end));
        assert_eq!(silence.check(end, false), Look::Silent(seconds(2)));
    }

    #[test]
    fn no_probe_is_sent_while_the_queue_pair_works() {
        let start = Instant::now();
        let mut silence = Silence::new(SETTINGS, start);
        let later = start + seconds(60);
        assert_eq!(silence.check(later, true), Look::Until(later + seconds(5)));
        assert_eq!(silence.check(later, false), Look::Probe);
    }
}
