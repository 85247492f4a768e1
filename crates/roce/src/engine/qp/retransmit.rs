//! When to send again, and when to give up.
//!
//! The local ACK timeout of a connection is long (RoCE connections get 0.5 to 2 s) for it must
//! cover the slowest peer and the largest network. Waiting that long for each lost packet would make
//! a lossy network useless, so the requester measures the round trip (RFC 6298) and sends again
//! after that, backing off exponentially. The *deadline* is that of the attributes: a connection on
//! which nothing is acknowledged ends after `(retry_cnt + 1)` local ACK timeouts, no sooner and no
//! later. With `retry_cnt` zero nothing is sent again; with `timeout` zero there is no timer and no
//! deadline (IBTA 9.7.6.1.3).

use core::time::Duration;

use portolan_provider::verbs::QpAttr;
use portolan_wire::timer::{cm_timeout_us, rnr_timer_us};

use crate::engine::FlowConfig;
use crate::engine::mutant::{Mutant, is_planted};

/// The RNR retry count that means "for ever" (IBTA 9.7.5.2.8).
const RNR_RETRY_FOREVER: u8 = 7;

/// Doublings of the wait at most; the local ACK timeout bounds it anyway.
const BACKOFF_MAX: u32 = 16;

/// A retry count is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Timers and retry counts of a requester.
#[derive(Debug)]
pub(super) struct Retransmit {
    /// Local ACK timeout; `None` means wait for ever.
    ack_timeout: Option<Duration>,
    retry_cnt: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    wait_min: Duration,
    wait_initial: Duration,
    /// Smoothed round trip and its variation.
    round_trip: Option<(Duration, Duration)>,
    /// A packet sent once, and when: its acknowledgement measures the round trip.
    sample: Option<(u64, Duration)>,
    backoff: u32,
    /// When something was last acknowledged, or the first packet sent after a pause.
    progress_at: Duration,
    /// When to send again.
    deadline: Option<Duration>,
    /// The peer had no receive posted: nothing is sent until then.
    rnr_until: Option<Duration>,
}

impl Retransmit {
    pub(super) fn new(flow: &FlowConfig) -> Self {
        Self {
            ack_timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            wait_min: flow.retransmit_min,
            wait_initial: flow.retransmit_initial,
            round_trip: None,
            sample: None,
            backoff: 0,
            progress_at: Duration::ZERO,
            deadline: None,
            rnr_until: None,
        }
    }

    /// Takes over the attributes of a connection that becomes ready to send.
    pub(super) fn configure(&mut self, attr: &QpAttr) {
        self.ack_timeout =
            (attr.timeout > 0).then(|| Duration::from_micros(cm_timeout_us(attr.timeout)));
        self.retry_cnt = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.retries_left = attr.retry_cnt;
        self.rnr_retries_left = attr.rnr_retry;
    }

    /// When [`on_timeout`](Self::on_timeout) or [`end_rnr_wait`](Self::end_rnr_wait) is due.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        self.rnr_until.or(self.deadline)
    }

    /// The packets up to number `end` were sent. `idle` if nothing was under way before, `fresh` if
    /// they were sent for the first time.
    pub(super) fn on_transmit(&mut self, now: Duration, end: u64, idle: bool, fresh: bool) {
        if idle {
            self.progress_at = now;
        }
        if fresh && self.sample.is_none() {
            self.sample = Some((end, now));
        }
        if self.deadline.is_none() {
            self.arm(now);
        }
    }

    /// Everything before number `una` was acknowledged, which is more than before. `pending` if
    /// packets are still under way.
    pub(super) fn on_progress(&mut self, now: Duration, una: u64, pending: bool) {
        if let Some((end, sent_at)) = self.sample
            && una >= end
        {
            self.measure(now.saturating_sub(sent_at));
            self.sample = None;
        }
        self.backoff = 0;
        self.progress_at = now;
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.deadline = None;
        if pending {
            self.arm(now);
        }
    }

    /// Sending starts over from the first unacknowledged packet: whose acknowledgement comes next
    /// is no longer certain, so the sample is void (Karn).
    pub(super) fn on_rewind(&mut self) {
        self.sample = None;
    }

    /// The peer reported a gap.
    pub(super) fn on_sequence_nak(&mut self) -> Result<(), Exhausted> {
        self.retries_left = self.retries_left.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }

    /// The peer asks to wait, by its timer code.
    pub(super) fn on_rnr_nak(&mut self, now: Duration, timer: u8) -> Result<(), Exhausted> {
        if self.rnr_retry != RNR_RETRY_FOREVER {
            self.rnr_retries_left = self.rnr_retries_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.deadline = None;
        self.backoff = 0;
        self.rnr_until = Some(now + Duration::from_micros(rnr_timer_us(timer).into()));
        Ok(())
    }

    /// Whether the peer asked to wait and the wait is not over.
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Ends the wait that the peer asked for, if it is over at `now`. The peer lives: its deadline
    /// starts anew.
    pub(super) fn end_rnr_wait(&mut self, now: Duration) {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
            self.progress_at = now;
        }
    }

    /// Whether it is time to send again.
    ///
    /// # Errors
    /// [`Exhausted`] if it is time to give up.
    pub(super) fn on_timeout(&mut self, now: Duration) -> Result<bool, Exhausted> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return Ok(false);
        }
        if self.give_up_at().is_some_and(|at| at <= now) {
            return Err(Exhausted);
        }
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.arm(now);
        Ok(true)
    }

    /// Nothing is awaited any more.
    pub(super) fn stop(&mut self) {
        self.deadline = None;
        self.rnr_until = None;
        self.sample = None;
    }

    fn arm(&mut self, now: Duration) {
        if self.backoff > 0 && is_planted(Mutant::TimerLost) {
            self.deadline = None;
            return;
        }
        let (Some(ack_timeout), Some(give_up_at)) = (self.ack_timeout, self.give_up_at()) else {
            return;
        };
        let wait = if self.retry_cnt == 0 {
            ack_timeout
        } else {
            let first = match self.round_trip {
                Some((smoothed, variation)) => (smoothed + variation * 4).max(self.wait_min),
                None => self.wait_initial,
            };
            first.saturating_mul(1 << self.backoff).min(ack_timeout)
        };
        self.deadline = Some((now + wait).min(give_up_at));
    }

    fn give_up_at(&self) -> Option<Duration> {
        let tries = u32::from(self.retry_cnt) + 1;
        Some(self.progress_at + self.ack_timeout? * tries)
    }

    /// RFC 6298, section 2.
    fn measure(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + sample) / 8,
                (variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// With a local ACK timeout of 268 ms.
    fn retransmit() -> Retransmit {
        let mut retransmit = Retransmit::new(&FlowConfig::default());
        let attr = QpAttr {
            timeout: 16,
            retry_cnt: 7,
            ..QpAttr::default()
        };
        retransmit.configure(&attr);
        retransmit
    }

    #[test]
    fn the_first_wait_is_the_initial_one_and_later_ones_follow_the_round_trip() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        assert_eq!(retransmit.next_timeout(), Some(100 * MS));
        retransmit.on_progress(20 * MS, 1, false);
        assert_eq!(retransmit.next_timeout(), None);
        retransmit.on_transmit(50 * MS, 2, true, true);
        // RFC 6298: the first sample, and four times half of it.
        assert_eq!(retransmit.next_timeout(), Some(50 * MS + 60 * MS));
    }

    #[test]
    fn short_round_trips_leave_the_shortest_wait() {
        let mut retransmit = retransmit();
        for step in 0..100u32 {
            let number = u64::from(step);
            retransmit.on_transmit(MS * step, number, true, true);
            retransmit.on_progress(MS * step + MS / 20, number, false);
        }
        retransmit.on_transmit(1000 * MS, 200, true, true);
        assert_eq!(retransmit.next_timeout(), Some(1000 * MS + 10 * MS));
    }

    #[test]
    fn a_packet_sent_twice_measures_nothing() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        assert_eq!(retransmit.on_timeout(100 * MS), Ok(true));
        retransmit.on_rewind();
        retransmit.on_transmit(100 * MS, 1, false, false);
        retransmit.on_progress(101 * MS, 1, false);
        retransmit.on_transmit(200 * MS, 2, true, true);
        assert_eq!(retransmit.next_timeout(), Some(300 * MS));
    }

    #[test]
    fn a_timer_that_is_called_early_does_nothing() {
        let mut retransmit = retransmit();
        assert_eq!(retransmit.on_timeout(100 * MS), Ok(false));
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        assert_eq!(retransmit.on_timeout(99 * MS), Ok(false));
        assert_eq!(retransmit.next_timeout(), Some(100 * MS));
    }
}
