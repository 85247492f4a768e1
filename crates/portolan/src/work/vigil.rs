//! Whether the peer of an idle connection is still there: when to ask, and when to give up.

use std::time::{Duration, Instant};

/// How a connection looks after a peer that says nothing: RDMA itself has no keepalive.
///
/// Once nothing has been heard for `interval`, and nothing is under way, the peer is asked by an RDMA
/// write of no bytes (as rsockets do it), which its device acknowledges without its program. What is
/// under way needs no such question: the queue pair's own retries end it.
///
/// The connection asks while somebody waits at it, and otherwise when somebody next does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Without a sign of life for so long the peer is asked; 1 ms to a day.
    pub interval: Duration,
    /// How long its device may take to answer; 1 ms to a day. The retries of the queue pair count in
    /// it: fewer than the time that all of them take ends a connection that a busy network might
    /// have kept.
    pub timeout: Duration,
}

impl Keepalive {
    /// The shortest and the longest time that either may be.
    pub(crate) const RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);
}

/// What is known of the peer's life.
#[derive(Debug)]
pub(super) struct Vigil {
    settings: Keepalive,
    /// When something last came from the peer, an acknowledgement among it.
    heard: Instant,
    /// When it was asked, if it has not answered since.
    asked: Option<Instant>,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing before this moment.
    Until(Instant),
    /// Ask the peer, and look again.
    Ask,
    /// It gave no sign of life for so long: the connection is over.
    Silent(Duration),
}

impl Vigil {
    pub(super) fn new(settings: Keepalive, now: Instant) -> Self {
        Self {
            settings,
            heard: now,
            asked: None,
        }
    }

    /// Something came from the peer.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The question has ended.
    pub(super) fn answered(&mut self) {
        self.asked = None;
    }

    /// What to do; `is_working` while sends are under way, which the queue pair looks after.
    pub(super) fn look(&mut self, now: Instant, is_working: bool) -> Look {
        let Keepalive { interval, timeout } = self.settings;
        if let Some(asked) = self.asked {
            let end = asked.max(self.heard) + timeout;
            return match now < end {
                true => Look::Until(end),
                false => Look::Silent(now - self.heard),
            };
        }
        let due = self.heard + interval;
        if now < due {
            return Look::Until(due);
        }
        if is_working {
            return Look::Until(now + interval);
        }
        self.asked = Some(now);
        Look::Ask
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
    fn a_silent_peer_is_asked_once_and_given_up_when_the_time_to_answer_is_over() {
        let start = Instant::now();
        let mut vigil = Vigil::new(SETTINGS, start);
        assert_eq!(vigil.look(start, false), Look::Until(start + seconds(5)));
        assert_eq!(vigil.look(start + seconds(5), false), Look::Ask);
        let end = start + seconds(7);
        assert_eq!(vigil.look(start + seconds(6), false), Look::Until(end));
        assert_eq!(vigil.look(end, false), Look::Silent(seconds(7)));
    }

    #[test]
    fn an_answer_begins_another_interval() {
        let start = Instant::now();
        let mut vigil = Vigil::new(SETTINGS, start);
        assert_eq!(vigil.look(start + seconds(5), false), Look::Ask);
        vigil.answered();
        vigil.heard(start + seconds(6));
        let next = start + seconds(11);
        assert_eq!(vigil.look(start + seconds(7), false), Look::Until(next));
        assert_eq!(vigil.look(next, false), Look::Ask);
    }

    #[test]
    fn a_peer_that_is_heard_of_is_not_given_up_though_its_answer_is_late() {
        let start = Instant::now();
        let mut vigil = Vigil::new(SETTINGS, start);
        assert_eq!(vigil.look(start + seconds(5), false), Look::Ask);
        vigil.heard(start + seconds(6));
        let end = start + seconds(8);
        assert_eq!(vigil.look(start + seconds(7), false), Look::Until(end));
        assert_eq!(vigil.look(end, false), Look::Silent(seconds(2)));
    }

    #[test]
    fn nothing_is_asked_while_the_queue_pair_works() {
        let start = Instant::now();
        let mut vigil = Vigil::new(SETTINGS, start);
        let later = start + seconds(60);
        assert_eq!(vigil.look(later, true), Look::Until(later + seconds(5)));
        assert_eq!(vigil.look(later, false), Look::Ask);
    }
}
