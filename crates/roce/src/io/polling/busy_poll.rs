//! How long the progress thread looks on for packets before it sleeps.
//!
//! A program that is read from or written to does nothing for it: its progress thread is woken by each request, which
//! takes as long as all the rest together, and many times as long where an idle processor has to be woken by a
//! hypervisor or an emulator. A peer that waits for the answer before it asks again will ask soon. So after such a
//! request the thread looks at the sockets a few times more. It does so rarely where that found nothing, not while other
//! threads keep the processors busy, and never where there is only one processor, which the peer may need.

use std::time::Duration;

use portolan_threads::processors;

/// Looks that find nothing before the thread sleeps: some 50 µs, and on a machine that is slower, as an emulated one,
/// so much longer as everything else takes there, waking included.
const LOOKS_MAX: u32 = 128;
/// Time after which it sleeps, however few looks that were.
const LONGEST: Duration = Duration::from_millis(1);
/// A look that takes so long was interrupted: another thread had the processor.
const INTERRUPTED: Duration = Duration::from_micros(500);
/// Requests after which the thread sleeps at once when a look was interrupted.
const SKIPS_INTERRUPTED: u32 = 32;
/// The maximum after repeated fruitless looks: they then cost a look or less a request.
const SKIPS_MAX: u32 = 256;

/// Whether the thread looks on after a request, as experience has it.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// Requests after which the thread still sleeps at once.
    skips: u32,
    /// What `skips` was last; doubled after each fruitless look, one less after each other.
    penalty: u32,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A one-sided request, which is carried out.
    OneSided,
    Nothing,
    /// Other packets, or that the thread has something else to do.
    Enough,
}

/// Looks without sleep, one after the other.
#[derive(Debug)]
struct Looks {
    left: u32,
    end: Duration,
    last: Duration,
}

/// What is next after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Look,
    /// The look found nothing.
    Sleep,
    /// Others need the processor.
    MakeWay,
}

impl BusyPoll {
    /// After a one-sided request, and while no thread polls: looks whether the next one comes soon. Whether it came, and is
    /// carried out.
    pub(crate) fn run(
        &mut self,
        clock: impl Fn() -> Duration,
        mut look: impl FnMut(Duration) -> Look,
    ) -> bool {
        if processors() == 1 {
            return false;
        }
        let mut now = clock();
        let Some(mut looks) = self.start(now) else {
            return false;
        };
        loop {
            match look(now) {
                Look::OneSided => {
                    self.found();
                    return true;
                }
                Look::Nothing => {}
                Look::Enough => return false,
            }
            now = clock();
            match looks.in_vain(now) {
                Next::Look => {}
                end => {
                    self.ended(end);
                    return false;
                }
            }
        }
    }

    /// The thread has carried out a request: the looks that follow, if any.
    fn start(&mut self, now: Duration) -> Option<Looks> {
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        Some(Looks {
            left: LOOKS_MAX,
            end: now + LONGEST,
            last: now,
        })
    }

    /// A look found the next request.
    fn found(&mut self) {
        self.penalty = self.penalty.saturating_sub(1);
    }

    /// The looks ended otherwise.
    fn ended(&mut self, next: Next) {
        self.penalty = (self.penalty * 2).clamp(1, SKIPS_MAX);
        self.skips = match next {
            Next::MakeWay => self.penalty.max(SKIPS_INTERRUPTED),
            Next::Look | Next::Sleep => self.penalty,
        };
    }
}

impl Looks {
    /// Counts a look that found nothing and ended `now`.
    fn in_vain(&mut self, now: Duration) -> Next {
        let took = now.saturating_sub(self.last);
        self.last = now;
        self.left = self.left.saturating_sub(1);
        if took >= INTERRUPTED {
            Next::MakeWay
        } else if self.left == 0 || now >= self.end {
            Next::Sleep
        } else {
            Next::Look
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_nanos(400);

    /// Polls without success until the thread sleeps. Returns the number of polls and the time.
    fn look_in_vain(busy_poll: &mut BusyPoll) -> (u32, Duration) {
        let mut now = Duration::ZERO;
        let Some(mut looks) = busy_poll.start(now) else {
            return (0, now);
        };
        let mut count = 0;
        loop {
            now += LOOK;
            count += 1;
            match looks.in_vain(now) {
                Next::Look => {}
                end => {
                    busy_poll.ended(end);
                    return (count, now);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_soon_gets_more_requests_polls_each_time_and_then_sleeps_after_about_50_us() {
        let mut busy_poll = BusyPoll::default();
        for _ in 0..1000 {
            let mut looks = busy_poll.start(Duration::ZERO).expect("looks");
            assert_eq!(looks.in_vain(LOOK), Next::Look);
            busy_poll.found();
        }
        let (count, took) = look_in_vain(&mut busy_poll);
        assert_eq!(count, LOOKS_MAX);
        assert!(took < Duration::from_micros(60), "{took:?}");
    }

    #[test]
    fn slow_polls_end_in_time() {
        let mut busy_poll = BusyPoll::default();
        let mut looks = busy_poll.start(Duration::ZERO).expect("looks");
        let mut now = Duration::ZERO;
        while looks.in_vain(now) == Next::Look {
            now += Duration::from_micros(100);
        }
        assert_eq!(now, LONGEST);
    }

    #[test]
    fn useless_polling_is_reduced_to_one_poll_per_request() {
        let mut busy_poll = BusyPoll::default();
        let mut looks = 0;
        const REQUESTS: u32 = 10_000;
        for _ in 0..REQUESTS {
            looks += look_in_vain(&mut busy_poll).0;
        }
        assert!(looks < REQUESTS, "{looks}");
        // It tries again, though.
        assert!((0..=SKIPS_MAX).any(|_| look_in_vain(&mut busy_poll).0 > 0));
    }

    #[test]
    fn after_a_successful_poll_it_polls_each_time_again() {
        let mut busy_poll = BusyPoll::default();
        for _ in 0..10_000 {
            look_in_vain(&mut busy_poll);
        }
        while busy_poll.start(Duration::ZERO).is_none() {}
        for _ in 0..1000 {
            busy_poll.found();
            assert!(busy_poll.start(Duration::ZERO).is_some());
        }
        busy_poll.ended(Next::Sleep);
        assert!(busy_poll.start(Duration::ZERO).is_none());
        assert!(
            busy_poll.start(Duration::ZERO).is_some(),
            "one miss is forgiven"
        );
    }

    #[test]
    fn an_interrupted_poll_is_the_last_for_a_while() {
        let mut busy_poll = BusyPoll::default();
        let mut looks = busy_poll.start(Duration::ZERO).expect("looks");
        let next = looks.in_vain(INTERRUPTED);
        assert_eq!(next, Next::MakeWay);
        busy_poll.ended(next);
        for _ in 0..SKIPS_INTERRUPTED {
            assert!(busy_poll.start(Duration::ZERO).is_none());
        }
        assert!(busy_poll.start(Duration::ZERO).is_some());
    }
}
