//! A message that is retransmitted until it is answered.

use alloc::boxed::Box;
use core::time::Duration;

use portolan_wire::mad::MAD_LEN;

/// A sent message and its retransmission schedule.
///
/// Linux sends 1 + retries times at a constant interval, and gives up one interval after the last. Here the number of
/// sends and the time of giving up are the same. But the first intervals are shorter and double until they equal
/// Linux's, so that one lost packet does not cost six seconds.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) mad: Box<[u8; MAD_LEN]>,
    /// The next interval.
    interval: Duration,
    /// The peer's time to answer: the longest interval.
    timeout: Duration,
    sends_left: u8,
    last_sent: Duration,
    next: Duration,
    give_up_at: Duration,
}

/// What to do when a request is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Send it once more.
    SendAgain,
    /// No answer arrived.
    GiveUp,
}

impl Request {
    /// `mad` was sent now. Its answer may take `timeout`, and it is retransmitted up to `retries` times.
    pub(crate) fn sent(
        mad: [u8; MAD_LEN],
        now: Duration,
        timeout: Duration,
        retries: u8,
        backoff_shift: u8,
    ) -> Self {
        let shortest = Duration::from_millis(1);
        let interval = (timeout / (1 << backoff_shift.min(16))).max(shortest);
        let mut request = Self {
            mad: Box::new(mad),
            interval,
            timeout,
            sends_left: retries,
            last_sent: now,
            next: now,
            give_up_at: now + timeout * (u32::from(retries) + 1),
        };
        request.schedule(now);
        request
    }

    /// When it is due.
    pub(crate) fn due_at(&self) -> Duration {
        self.next
    }

    /// Takes the next step, when it is due.
    pub(crate) fn advance(&mut self, now: Duration) -> Due {
        if self.sends_left == 0 {
            return Due::GiveUp;
        }
        self.sends_left -= 1;
        self.last_sent = now;
        self.interval = (self.interval * 2).min(self.timeout);
        self.schedule(now);
        Due::SendAgain
    }

    /// The peer has the message and asks for `service` to answer it (MRA). The time counts from the last send, so that
    /// repeated requests gain nothing unless we send again.
    pub(crate) fn postpone(&mut self, service: Duration) {
        let resume = self.last_sent + service + self.timeout;
        if resume > self.next {
            self.next = resume;
            // Time for the remaining sends, but not more than the peer asked for.
            let last = resume + self.timeout * u32::from(self.sends_left);
            self.give_up_at = self.give_up_at.max(last);
        }
    }

    /// The last interval ends at the time of giving up, but is never shorter than the peer's response time. This
    /// matters only if the engine was called late.
    fn schedule(&mut self, now: Duration) {
        self.next = match self.sends_left {
            0 => self.give_up_at.max(now + self.timeout),
            _ => now + self.interval,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const TIMEOUT: Duration = Duration::from_millis(6144);

    /// The times of all sends, and of giving up.
    fn run(mut request: Request) -> (Vec<Duration>, Duration) {
        let mut sends = alloc::vec![Duration::ZERO];
        loop {
            let now = request.due_at();
            match request.advance(now) {
                Due::SendAgain => sends.push(now),
                Due::GiveUp => return (sends, now),
            }
        }
    }

    #[test]
    fn sixteen_sends_and_giving_up_take_as_long_as_in_linux_with_any_back_off() {
        for shift in [0, 3, 200] {
            let (sends, end) = run(Request::sent([0; 256], Duration::ZERO, TIMEOUT, 15, shift));
            assert_eq!(sends.len(), 16);
            assert_eq!(end, TIMEOUT * 16);
        }
    }

    #[test]
    fn intervals_double_up_to_the_kernels() {
        let (sends, _) = run(Request::sent([0; 256], Duration::ZERO, TIMEOUT, 15, 3));
        let gaps: Vec<_> = sends
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_millis())
            .collect();
        assert_eq!(gaps[..4], [768, 1536, 3072, 6144]);
        assert!(gaps[4..].iter().all(|gap| *gap == 6144));
    }

    #[test]
    fn a_message_that_is_not_repeated_waits_once() {
        let (sends, end) = run(Request::sent([0; 256], Duration::ZERO, TIMEOUT, 0, 3));
        assert_eq!((sends.len(), end), (1, TIMEOUT));
    }

    #[test]
    fn asking_for_time_twice_without_a_send_between_gains_nothing() {
        let mut request = Request::sent([0; 256], Duration::ZERO, TIMEOUT, 15, 3);
        let service = Duration::from_secs(60);
        request.postpone(service);
        let due = request.due_at();
        assert_eq!(due, service + TIMEOUT);
        request.postpone(service);
        assert_eq!(request.due_at(), due);
    }

    #[test]
    fn each_send_adds_no_more_than_the_time_its_answer_asked_for() {
        let service = Duration::from_millis(1024);
        for shift in [0, 3, 200] {
            let mut request = Request::sent([0; 256], Duration::ZERO, TIMEOUT, 3, shift);
            let end = loop {
                request.postpone(service);
                let now = request.due_at();
                if request.advance(now) == Due::GiveUp {
                    break now;
                }
            };
            assert_eq!(end, (TIMEOUT + service) * 4, "back-off {shift}");
        }
    }

    #[test]
    fn a_late_call_does_not_send_everything_at_once() {
        let mut request = Request::sent([0; 256], Duration::ZERO, TIMEOUT, 15, 3);
        let late = TIMEOUT * 1000;
        assert_eq!(request.advance(late), Due::SendAgain);
        assert!(request.due_at() > late);
    }
}
