//! The retransmission timer: when to send again, and when to give up.
//!
//! The local ACK timeout of a connection is long (RoCE connections get 0.5 to 2 s), because it must cover the slowest
//! peer and the largest network. Waiting that long for each lost packet would make a lossy network unusable. So the
//! requester measures the round trip (RFC 6298) and retransmits after that, with exponential backoff. The *deadline*
//! follows the attributes: a connection without any acknowledgement ends after exactly `(retry_cnt + 1)` local ACK
//! timeouts. With `retry_cnt` zero nothing is retransmitted; with `timeout` zero there is no timer and no deadline
//! (IBTA 9.7.6.1.3).
//!
//! A process may be stopped or starved for longer than that. A late timer says nothing about the peer. So the delay
//! does not count, and a last wait that it cut short is repeated after one more retransmission.

use core::time::Duration;

use portolan_provider::verbs::QpAttr;
use portolan_wire::timer::{cm_timeout_us, rnr_timer_us};

use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::{FlowConfig, as_nanos};

/// The RNR retry count that means unlimited (IBTA 9.7.5.2.8).
const RNR_RETRY_FOREVER: u8 = 7;

/// Maximum number of doublings; the local ACK timeout limits the wait anyway.
const BACKOFF_MAX: u32 = 16;

/// A retry count is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Timers and retry counts of a requester.
#[derive(Debug)]
pub(super) struct Retransmit {
    /// Local ACK timeout; `None` means no timeout.
    ack_timeout: Option<Duration>,
    retry_cnt: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    wait_min: Duration,
    wait_min_ns: u64,
    /// Smoothed round trip and its variation, nanoseconds.
    round_trip: Option<(u64, u64)>,
    /// The first wait for an answer, which follows from them.
    first_wait: Duration,
    /// The wait before anything is retransmitted: `first_wait`, or the local ACK timeout if that is shorter or nothing
    /// is retransmitted. `None` without a timer.
    wait: Option<Duration>,
    /// The local ACK timeouts of all tries.
    all_tries: Option<Duration>,
    /// A packet sent once, and its send time: its acknowledgement measures the round trip.
    sample: Option<(u64, Duration)>,
    backoff: u32,
    /// Time of the last acknowledgement, or of the first request after a pause, plus the timer's delays since then.
    progress_at: Duration,
    /// Number of last waits since then that did not count because the timer was late.
    late_ends: u8,
    /// When to retransmit.
    deadline: Option<Duration>,
    /// The peer had no receive posted: nothing is sent until this time.
    rnr_until: Option<Duration>,
    /// Since when the peer has had no receive for the oldest unacknowledged message.
    not_ready_since: Option<Duration>,
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
            wait_min_ns: as_nanos(flow.retransmit_min),
            round_trip: None,
            first_wait: flow.retransmit_initial,
            wait: None,
            all_tries: None,
            sample: None,
            backoff: 0,
            progress_at: Duration::ZERO,
            late_ends: 0,
            deadline: None,
            rnr_until: None,
            not_ready_since: None,
        }
    }

    /// Applies the attributes of a connection that becomes ready to send.
    pub(super) fn configure(&mut self, attr: &QpAttr) {
        self.ack_timeout =
            (attr.timeout > 0).then(|| Duration::from_micros(cm_timeout_us(attr.timeout)));
        let tries = u32::from(attr.retry_cnt) + 1;
        self.all_tries = self.ack_timeout.map(|ack_timeout| ack_timeout * tries);
        self.retry_cnt = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.retries_left = attr.retry_cnt;
        self.rnr_retries_left = attr.rnr_retry;
        self.renew_wait();
    }

    /// Whether it runs while packets are in flight: there is a local ACK timeout.
    pub(super) fn is_used(&self) -> bool {
        self.ack_timeout.is_some()
    }

    /// When [`on_timeout`](Self::on_timeout) or [`end_rnr_wait`](Self::end_rnr_wait) is due.
    #[inline]
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        self.rnr_until.or(self.deadline)
    }

    /// Packets up to number `end` were sent. `idle` means that nothing was in flight before, `fresh` that they were
    /// sent for the first time.
    #[inline(always)]
    pub(super) fn on_transmit(&mut self, now: Duration, end: u64, idle: bool, fresh: bool) {
        if idle {
            // The timer may run since the first of them found no room.
            self.begin(now);
        }
        if fresh && self.sample.is_none() {
            self.sample = Some((end, now));
        }
        if !idle && self.deadline.is_none() {
            self.arm(now);
        }
    }

    /// Runs if it does not, although nothing can be sent now. `idle` means that nothing is in flight.
    pub(super) fn keep_running(&mut self, now: Duration, idle: bool) {
        if self.deadline.is_none() {
            if idle {
                self.note_progress(now);
            }
            self.arm(now);
        }
    }

    /// Everything before number `una` was acknowledged, which is progress. `pending` means that packets are still in
    /// flight.
    #[inline]
    pub(super) fn on_progress(&mut self, now: Duration, una: u64, pending: bool) {
        if let Some((end, sent_at)) = self.sample
            && una >= end
        {
            self.measure(now.saturating_sub(sent_at));
            self.sample = None;
        }
        self.not_ready_since = None;
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        match pending {
            true => self.begin(now),
            // What is sent next begins anew.
            false => (self.backoff, self.deadline) = (0, None),
        }
    }

    /// Sending restarts at the first unacknowledged packet. Which transmission the next acknowledgement answers is then
    /// ambiguous, so the sample is void (Karn).
    pub(super) fn on_rewind(&mut self) {
        self.sample = None;
    }

    /// The peer reported a gap.
    pub(super) fn on_sequence_nak(&mut self) -> Result<(), Exhausted> {
        self.retries_left = self.retries_left.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }

    /// The peer requests a wait, by its timer code.
    pub(super) fn on_rnr_nak(&mut self, now: Duration, timer: u8) -> Result<(), Exhausted> {
        if self.rnr_retry != RNR_RETRY_FOREVER {
            self.rnr_retries_left = self.rnr_retries_left.checked_sub(1).ok_or(Exhausted)?;
        }
        self.deadline = None;
        self.backoff = 0;
        self.rnr_until = Some(now + Duration::from_micros(rnr_timer_us(timer).into()));
        self.not_ready_since.get_or_insert(now);
        Ok(())
    }

    /// Whether a wait that the peer requested is in progress.
    #[inline]
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Since when the peer has had no receive for the oldest unacknowledged message; `None` if it has one, or has not
    /// answered.
    pub(super) fn not_ready_since(&self) -> Option<Duration> {
        self.not_ready_since
    }

    /// Ends the wait that the peer requested, if it is over at `now`. The peer is alive, so its deadline restarts. A
    /// wait for an answer that started in the meantime restarts as well: if its end has passed, the timer was not late,
    /// because none was running.
    #[inline]
    pub(super) fn end_rnr_wait(&mut self, now: Duration) {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
            self.note_progress(now);
            if self.deadline.is_some() {
                self.arm(now);
            }
        }
    }

    /// Whether it is time to retransmit.
    ///
    /// # Errors
    /// [`Exhausted`] if it is time to give up.
    pub(super) fn on_timeout(&mut self, now: Duration) -> Result<bool, Exhausted> {
        let Some(deadline) = self.deadline.filter(|deadline| *deadline <= now) else {
            return Ok(false);
        };
        let late = now - deadline;
        self.progress_at += late;
        if self.give_up_at().is_some_and(|at| at <= now) {
            self.wait_again_if(late >= self.wait_min, now)?;
        }
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.arm(now);
        Ok(self.retry_cnt > 0)
    }

    /// The last wait is over. If the peer could not use it, it is repeated, but at most as often as there are retries,
    /// so that a host that is always late gives up, too.
    fn wait_again_if(&mut self, was_late: bool, now: Duration) -> Result<(), Exhausted> {
        let Some(ack_timeout) = self.ack_timeout.filter(|_| was_late) else {
            return Err(Exhausted);
        };
        if self.late_ends > self.retry_cnt {
            return Err(Exhausted);
        }
        self.late_ends += 1;
        let tries_before = u32::from(self.retry_cnt);
        self.progress_at = now.saturating_sub(ack_timeout * tries_before);
        Ok(())
    }

    /// Stops the timer, because no answer is expected.
    #[inline]
    pub(super) fn stop(&mut self) {
        self.deadline = None;
        self.rnr_until = None;
        self.not_ready_since = None;
        self.sample = None;
    }

    /// Begins the first wait for an answer. All tries last longer, so [`arm`](Self::arm) would find the same end.
    #[inline]
    fn begin(&mut self, now: Duration) {
        self.note_progress(now);
        self.backoff = 0;
        self.deadline = self.wait.map(|wait| now + wait);
    }

    #[inline]
    fn note_progress(&mut self, now: Duration) {
        self.progress_at = now;
        self.late_ends = 0;
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
            let wait = match self.backoff {
                0 => self.first_wait,
                doublings => self.first_wait.saturating_mul(1 << doublings),
            };
            wait.min(ack_timeout)
        };
        self.deadline = Some((now + wait).min(give_up_at));
    }

    fn give_up_at(&self) -> Option<Duration> {
        Some(self.progress_at + self.all_tries?)
    }

    /// RFC 6298, section 2.
    #[inline]
    fn measure(&mut self, sample: Duration) {
        // Decades are enough, and leave room for the sums.
        const NANOS_MAX: u64 = u64::MAX >> 4;
        let sample = as_nanos(sample).min(NANOS_MAX);
        let (smoothed, variation) = match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + sample) / 8,
                (variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        };
        self.round_trip = Some((smoothed, variation));
        let wait_ns = smoothed.saturating_add(variation.saturating_mul(4));
        // The common case needs no division.
        let first_wait = match wait_ns <= self.wait_min_ns {
            true => self.wait_min,
            false => Duration::from_nanos(wait_ns),
        };
        if first_wait != self.first_wait {
            self.first_wait = first_wait;
            self.renew_wait();
        }
    }

    fn renew_wait(&mut self) {
        self.wait = self.ack_timeout.map(|ack_timeout| match self.retry_cnt {
            0 => ack_timeout,
            _ => self.first_wait.min(ack_timeout),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A timer with a local ACK timeout of 268 ms.
    fn retransmit() -> Retransmit {
        retransmit_with(7)
    }

    fn retransmit_with(retry_cnt: u8) -> Retransmit {
        let mut retransmit = Retransmit::new(&FlowConfig::default());
        let attr = QpAttr {
            timeout: 16,
            retry_cnt,
            rnr_retry: 7,
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
    fn a_timeout_that_passed_while_the_peer_asked_to_wait_is_not_late() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        retransmit.on_rnr_nak(10 * MS, 0).unwrap();
        // Earlier packets are acknowledged meanwhile, and more are in flight.
        retransmit.on_progress(20 * MS, 1, true);
        let until = retransmit.next_timeout().expect("a wait");
        assert!(until > 600 * MS, "{until:?}");
        retransmit.end_rnr_wait(until);
        // No timer is late before it is requested.
        let next = retransmit.next_timeout().expect("an answer is awaited");
        let passed = until.saturating_sub(next);
        let late = |sent_again| [passed, Duration::ZERO][usize::from(sent_again > 0)];
        let (_, at) = give_up(&mut retransmit, late);
        assert_eq!(at, until + Duration::from_micros(cm_timeout_us(16)) * 8);
    }

    /// Serves each deadline late by this much until it gives up. Returns the number of retransmissions and the
    /// time of giving up.
    fn give_up(
        retransmit: &mut Retransmit,
        mut late: impl FnMut(u32) -> Duration,
    ) -> (u32, Duration) {
        for sent_again in 0..1000 {
            let now = retransmit.next_timeout().expect("a deadline") + late(sent_again);
            if retransmit.on_timeout(now).is_err() {
                return (sent_again, now);
            }
        }
        panic!("it never gives up");
    }

    /// The total time of all tries of [`retransmit`].
    fn all_tries() -> Duration {
        Duration::from_micros(cm_timeout_us(16)) * 8
    }

    #[test]
    fn it_gives_up_after_all_local_ack_timeouts_no_sooner_and_no_later() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        let (sent_again, at) = give_up(&mut retransmit, |_| Duration::ZERO);
        assert_eq!((sent_again, at), (8, all_tries()));
    }

    #[test]
    fn all_retries_are_sent_however_late_the_first_timer_is() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        let hour = Duration::from_secs(3600);
        let late = |step| if step == 0 { hour } else { Duration::ZERO };
        let (sent_again, at) = give_up(&mut retransmit, late);
        assert_eq!((sent_again, at), (8, hour + all_tries()));
    }

    #[test]
    fn a_last_wait_that_ends_late_is_repeated_after_another_retransmission() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        let late = |step| if step == 8 { 500 * MS } else { Duration::ZERO };
        let (sent_again, at) = give_up(&mut retransmit, late);
        let ack_timeout = all_tries() / 8;
        assert_eq!((sent_again, at), (9, all_tries() + 500 * MS + ack_timeout));
    }

    #[test]
    fn without_retries_nothing_is_retransmitted_but_a_late_wait_is_repeated() {
        let mut retransmit = retransmit_with(0);
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        let ack_timeout = all_tries() / 8;
        assert_eq!(retransmit.on_timeout(ack_timeout + 50 * MS), Ok(false));
        let again = ack_timeout * 2 + 50 * MS;
        assert_eq!(retransmit.next_timeout(), Some(again));
        assert_eq!(retransmit.on_timeout(again), Err(Exhausted));
    }

    #[test]
    fn a_host_that_is_always_late_gives_up_too() {
        let mut retransmit = retransmit();
        retransmit.on_transmit(Duration::ZERO, 1, true, true);
        let (sent_again, _) = give_up(&mut retransmit, |_| 100 * MS);
        // Late timeouts that did not count, one for each try.
        assert_eq!(sent_again, 8 + 8);
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
