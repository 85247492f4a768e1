//! How long the progress thread polls for packets before it sleeps.
//!
//! A program whose memory is read or written by a peer does nothing itself: each request wakes its progress thread.
//! Waking takes as long as everything else together, and much longer if a hypervisor or an emulator has to wake an
//! idle processor. A peer that waits for its answer is likely to send the next request soon.
//!
//! So after such a request the thread polls the rings and sockets for a short time. It polls less often after polls without
//! success, not while other threads keep the processors busy, and never on a machine with one processor, which the
//! peer may need.

use std::time::Duration;

use portolan_threads::processors;

/// How long the thread polls without success before it sleeps.
const SERIES: Duration = Duration::from_micros(50);
/// It polls at least this often. A count adapts to slow machines, such as emulated ones, where waking takes longer too.
const LOOKS_MIN: u32 = 128;
/// Requests found in a row before the thread looks at everything else that it waits for.
const FOUND_MAX: u32 = 16;
/// The thread sleeps after this time without success, however few polls fitted in. After this time with success, it looks
/// at everything else.
const LONGEST: Duration = Duration::from_millis(1);
/// A poll that took this long was interrupted: another thread had the processor.
const INTERRUPTED: Duration = Duration::from_micros(500);
/// After an interrupted poll, the thread sleeps at once for this many requests.
const SKIPS_INTERRUPTED: u32 = 8;
/// Maximum of `skips`. Repeated failures then cost little per request.
const SKIPS_MAX: u32 = 256;

/// Decides from experience whether the thread polls after a request.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// Number of requests after which the thread still sleeps at once.
    skips: u32,
    /// The last value of `skips`: doubled when polling fails, reduced by one when it succeeds.
    penalty: u32,
}

/// The result of one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A one-sided request, which the poll has executed.
    OneSided,
    Nothing,
    /// Other packets arrived, or the thread has something else to do.
    Enough,
}

/// One series of polls without sleep.
#[derive(Debug)]
struct Looks {
    /// Number of polls that it has at least.
    left: u32,
    begun: Duration,
    last: Duration,
}

/// What to do after a poll without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Look,
    /// The time is up.
    Sleep,
    /// Other threads need the processor.
    MakeWay,
}

impl BusyPoll {
    /// Polls for the next one-sided requests after one was executed, while no thread polls. Returns whether any was
    /// executed.
    pub(crate) fn run(
        &mut self,
        clock: impl Fn() -> Duration,
        mut look: impl FnMut(Duration) -> Look,
    ) -> bool {
        if processors() == 1 {
            return false;
        }
        let begun = clock();
        let mut now = begun;
        let Some(mut looks) = self.start(now) else {
            return false;
        };
        let mut found = 0;
        loop {
            let looked = look(now);
            now = clock();
            match looked {
                Look::OneSided => {
                    self.found();
                    found += 1;
                    if found == FOUND_MAX || now.saturating_sub(begun) >= LONGEST {
                        return true;
                    }
                    looks = Looks::begin(now);
                }
                Look::Nothing => match looks.found_nothing(now) {
                    Next::Look => {}
                    end => {
                        self.ended(end);
                        return found > 0;
                    }
                },
                Look::Enough => return found > 0,
            }
        }
    }

    /// Starts a series of polls after a request, unless experience advises against it.
    fn start(&mut self, now: Duration) -> Option<Looks> {
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        Some(Looks::begin(now))
    }

    /// The series found the next request.
    fn found(&mut self) {
        self.penalty = self.penalty.saturating_sub(1);
    }

    /// The series ended without success.
    fn ended(&mut self, next: Next) {
        self.penalty = (self.penalty * 2).clamp(1, SKIPS_MAX);
        self.skips = match next {
            Next::MakeWay => self.penalty.max(SKIPS_INTERRUPTED),
            Next::Look | Next::Sleep => self.penalty,
        };
    }
}

impl Looks {
    fn begin(now: Duration) -> Self {
        Self {
            left: LOOKS_MIN,
            begun: now,
            last: now,
        }
    }

    /// Counts a poll that found nothing and ended at `now`.
    fn found_nothing(&mut self, now: Duration) -> Next {
        let took = now.saturating_sub(self.last);
        let took_all = now.saturating_sub(self.begun);
        self.last = now;
        self.left = self.left.saturating_sub(1);
        if took >= INTERRUPTED {
            Next::MakeWay
        } else if took_all >= LONGEST || self.left == 0 && took_all >= SERIES {
            Next::Sleep
        } else {
            Next::Look
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_nanos(50);

    /// Polls without success until the thread sleeps. Returns the number of polls and the time.
    fn poll_without_result(busy_poll: &mut BusyPoll) -> (u32, Duration) {
        let mut now = Duration::ZERO;
        let Some(mut looks) = busy_poll.start(now) else {
            return (0, now);
        };
        let mut count = 0;
        loop {
            now += LOOK;
            count += 1;
            match looks.found_nothing(now) {
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
            assert_eq!(looks.found_nothing(LOOK), Next::Look);
            busy_poll.found();
        }
        let (count, took) = poll_without_result(&mut busy_poll);
        assert!(count >= LOOKS_MIN);
        assert_eq!(took, SERIES);
    }

    /// Runs with the results of its looks, `gap` apart. Returns what the run says, and how many looks it made.
    fn run(looks: impl IntoIterator<Item = Look>, gap: Duration) -> (bool, u32) {
        let now = std::cell::Cell::new(Duration::ZERO);
        let (mut looks, mut made) = (looks.into_iter(), 0);
        let found = BusyPoll::default().run(
            || now.get(),
            |_| {
                made += 1;
                now.set(now.get() + gap);
                looks.next().expect("no further look")
            },
        );
        (found, made)
    }

    #[test]
    fn requests_that_follow_each_other_are_taken_in_one_run_until_other_work_is_looked_for() {
        if processors() == 1 {
            return;
        }
        let requests = || std::iter::repeat(Look::OneSided);
        assert_eq!(run(requests(), LOOK), (true, FOUND_MAX));
        let slow = LONGEST / 2;
        assert_eq!(run(requests(), slow), (true, 2));
        let mixed = [Look::Nothing, Look::OneSided, Look::Nothing, Look::Enough];
        assert_eq!(run(mixed, LOOK), (true, 4));
        assert_eq!(run([Look::Nothing, Look::Enough], LOOK), (false, 2));
        let one = std::iter::once(Look::OneSided).chain(std::iter::repeat(Look::Nothing));
        let looks = (SERIES.as_nanos() / LOOK.as_nanos()) as u32;
        assert_eq!(run(one, LOOK), (true, 1 + looks));
    }

    #[test]
    fn polls_of_sockets_end_after_a_number_of_polls() {
        let mut busy_poll = BusyPoll::default();
        let mut looks = busy_poll.start(Duration::ZERO).expect("looks");
        let look = Duration::from_micros(1);
        let mut now = look;
        while looks.found_nothing(now) == Next::Look {
            now += look;
        }
        assert_eq!(now, look * LOOKS_MIN);
    }

    #[test]
    fn slow_polls_end_in_time() {
        let mut busy_poll = BusyPoll::default();
        let mut looks = busy_poll.start(Duration::ZERO).expect("looks");
        let mut now = Duration::ZERO;
        while looks.found_nothing(now) == Next::Look {
            now += Duration::from_micros(100);
        }
        assert_eq!(now, LONGEST);
    }

    #[test]
    fn useless_polling_is_reduced_to_less_than_half_a_microsecond_per_request() {
        let mut busy_poll = BusyPoll::default();
        let mut took = Duration::ZERO;
        const REQUESTS: u32 = 10_000;
        for _ in 0..REQUESTS {
            took += poll_without_result(&mut busy_poll).1;
        }
        assert!(took < REQUESTS * Duration::from_nanos(500), "{took:?}");
        // It tries again, though.
        assert!((0..=SKIPS_MAX).any(|_| poll_without_result(&mut busy_poll).0 > 0));
    }

    #[test]
    fn after_a_successful_poll_it_polls_each_time_again() {
        let mut busy_poll = BusyPoll::default();
        for _ in 0..10_000 {
            poll_without_result(&mut busy_poll);
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
        let next = looks.found_nothing(INTERRUPTED);
        assert_eq!(next, Next::MakeWay);
        busy_poll.ended(next);
        for _ in 0..SKIPS_INTERRUPTED {
            assert!(busy_poll.start(Duration::ZERO).is_none());
        }
        assert!(busy_poll.start(Duration::ZERO).is_some());
    }
}
