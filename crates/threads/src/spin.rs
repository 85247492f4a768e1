//! How long a waiting thread polls before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a waiting thread polls. A completion within this time is not worth two context switches.
const SPIN: Duration = Duration::from_micros(50);
/// The longest time for a thread that polls a minimal number of times.
const LONGEST: Duration = Duration::from_millis(1);
/// By default, a single poll this long was interrupted.
const INTERRUPTED: Duration = Duration::from_micros(500);
/// Number of waits that skip polling after an interruption. A sleeping thread gets the processor
/// back when there is work for it; on a busy machine a polling thread only gets it back in its
/// turn.
const WAITS_WITHOUT: u32 = 32;
/// Maximum number of waits that skip polling because earlier polls found nothing. If the peer shares the processor of the
/// waiting thread, or answers late, polling takes time from both. Then at most one wait in this many polls.
const SKIPS_MAX: u32 = 256;

/// Whether waiting threads currently poll.
#[derive(Debug)]
pub struct Spin {
    polls: bool,
    /// How long a wait polls.
    lasts: Duration,
    /// A single poll this long was interrupted: another thread or task had the processor.
    interrupted: Duration,
    /// A wait polls at least this often, unless that takes too long.
    polls_min: u32,
    /// Number of further waits that skip polling.
    skips: AtomicU32,
    /// Doubled when a wait's polls found nothing, halved when they found an answer.
    penalty: AtomicU32,
    /// A wait polls, and may still find an answer.
    is_hopeful: AtomicBool,
}

/// The polling of one waiting thread.
#[derive(Debug)]
pub struct Polling {
    /// When it may end, and when it must.
    ends: [Instant; 2],
    last: Instant,
    /// The polls that are left to the minimum.
    left: u32,
}

impl Default for Spin {
    /// Machines with one processor never poll, because the peer could not run meanwhile.
    fn default() -> Self {
        Self {
            polls: crate::processors() > 1,
            lasts: SPIN,
            interrupted: INTERRUPTED,
            polls_min: 0,
            skips: AtomicU32::new(0),
            penalty: AtomicU32::new(0),
            is_hopeful: AtomicBool::new(false),
        }
    }
}

impl Spin {
    /// As the default, but waits poll at least `polls_min` times, for up to 1 ms. The number adapts to slow machines, such as
    /// emulated ones, where a context switch takes longer, too.
    pub fn at_least(polls_min: u32) -> Self {
        Self {
            polls_min,
            ..Self::default()
        }
    }

    /// As the default, but waits poll for this time, at most 1 ms. A single poll that takes all of it was interrupted.
    pub fn lasting(time: Duration) -> Self {
        let lasts = time.min(LONGEST);
        Self {
            lasts,
            interrupted: lasts,
            ..Self::default()
        }
    }

    /// Starts a wait.
    pub fn start(&self) -> Polling {
        self.start_at(Instant::now())
    }

    fn start_at(&self, now: Instant) -> Polling {
        // Two concurrent waits may count as one; the heuristic tolerates that.
        let skips = self.skips.load(Ordering::Relaxed);
        let polls = if skips > 0 {
            self.skips.store(skips - 1, Ordering::Relaxed);
            false
        } else {
            if self.is_hopeful.swap(true, Ordering::Relaxed) {
                let penalty = self.penalty.load(Ordering::Relaxed);
                self.penalty.store(penalty / 2, Ordering::Relaxed);
            }
            self.polls
        };
        let (times, left) = match polls {
            true => ([self.lasts, LONGEST], self.polls_min),
            false => ([Duration::ZERO; 2], 0),
        };
        Polling {
            ends: times.map(|time| now + time),
            last: now,
            left,
        }
    }

    /// Returns whether to poll again after an unsuccessful poll.
    pub fn goes_on(&self, polling: &mut Polling) -> bool {
        self.goes_on_at(polling, Instant::now())
    }

    fn goes_on_at(&self, polling: &mut Polling, now: Instant) -> bool {
        let took = now.saturating_duration_since(polling.last);
        polling.last = now;
        if took >= self.interrupted {
            // The waits that now sleep at once must not count as polls that found nothing.
            self.is_hopeful.store(false, Ordering::Relaxed);
            self.skips.store(WAITS_WITHOUT, Ordering::Relaxed);
            return false;
        }
        polling.left = polling.left.saturating_sub(1);
        let [may_end, must_end] = polling.ends;
        // A poll that took longer than all should take waited for other threads.
        let is_slow = polling.left > 0 && now < must_end && took < SPIN;
        let goes_on = now < may_end || is_slow;
        if !goes_on && self.is_hopeful.swap(false, Ordering::Relaxed) {
            let penalty = self.penalty.load(Ordering::Relaxed);
            // The first such wait changes nothing.
            self.skips.store(penalty, Ordering::Relaxed);
            let next = (penalty * 2).clamp(1, SKIPS_MAX);
            self.penalty.store(next, Ordering::Relaxed);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN_AND_A_BIT: Duration = Duration::from_micros(51);

    fn spin() -> Spin {
        Spin {
            polls: true,
            ..Spin::default()
        }
    }

    /// The number of `waits` that poll. Each ends without or with an answer.
    fn polls(spin: &Spin, waits: u32, is_answered: bool) -> u32 {
        let now = Instant::now();
        let polls = (0..waits).filter(|_| {
            let mut polling = spin.start_at(now);
            let polls = spin.goes_on_at(&mut polling, now);
            if !is_answered {
                spin.goes_on_at(&mut polling, now + SPIN_AND_A_BIT);
            }
            polls
        });
        u32::try_from(polls.count()).unwrap()
    }

    #[test]
    fn waits_that_poll_in_vain_become_rare_and_one_that_does_not_restores_them() {
        let spin = spin();
        assert!(polls(&spin, 10_000, false) < 100);
        polls(&spin, 2 * SKIPS_MAX, true);
        assert!(polls(&spin, 100, true) == 100);
        polls(&spin, 1, false);
        assert!(polls(&spin, 100, true) > 90, "one is forgiven");
    }

    #[test]
    fn a_waiter_polls_for_its_time_and_then_sleeps() {
        let (spin, start) = (spin(), Instant::now());
        let mut polling = spin.start_at(start);
        assert!(spin.goes_on_at(&mut polling, start + SPIN / 2));
        assert!(!spin.goes_on_at(&mut polling, start + SPIN_AND_A_BIT));
        assert!(spin.goes_on_at(&mut spin.start_at(start), start + SPIN / 2));
    }

    #[test]
    fn a_waiter_with_a_time_of_its_own_polls_for_that_time() {
        let time = 4 * SPIN;
        let spin = Spin {
            polls: true,
            ..Spin::lasting(time)
        };
        let start = Instant::now();
        let mut polling = spin.start_at(start);
        for quarter in 1..4 {
            assert!(spin.goes_on_at(&mut polling, start + quarter * time / 4));
        }
        assert!(!spin.goes_on_at(&mut polling, start + time));
        // One that is interrupted for this time counts so, not as one that found nothing.
        assert!(!spin.goes_on_at(&mut spin.start_at(start), start + time));
        let skipped = (0..WAITS_WITHOUT).filter(|_| {
            let mut polling = spin.start_at(start);
            !spin.goes_on_at(&mut polling, start)
        });
        assert_eq!(skipped.count(), WAITS_WITHOUT as usize);
    }

    #[test]
    fn a_waiter_on_a_slow_machine_polls_as_often_as_it_should_but_not_for_long() {
        const LEAST: u32 = 128;
        let start = Instant::now();
        // The number of polls of a wait, each of which takes so long.
        let polls = |each: Duration| {
            let spin = Spin {
                polls: true,
                ..Spin::at_least(LEAST)
            };
            let mut polling = spin.start_at(start);
            let goes_on = |poll: &u32| spin.goes_on_at(&mut polling, start + *poll * each);
            u32::try_from((1..10_000).take_while(goes_on).count()).unwrap() + 1
        };
        assert_eq!(polls(SPIN / 1000), 1000, "a fast one polls for its time");
        assert_eq!(polls(SPIN / 10), LEAST);
        assert_eq!(polls(SPIN / 2), LONGEST.div_duration_f64(SPIN / 2) as u32);
        assert_eq!(polls(2 * SPIN), 1, "others had the processor");
    }

    #[test]
    fn after_an_interrupted_poll_the_next_waits_sleep_at_once() {
        let (spin, start) = (spin(), Instant::now());
        assert!(!spin.goes_on_at(&mut spin.start_at(start), start + INTERRUPTED));
        for _ in 0..WAITS_WITHOUT {
            assert!(!spin.goes_on_at(&mut spin.start_at(start), start));
        }
        assert!(
            spin.goes_on_at(&mut spin.start_at(start), start),
            "it must poll again"
        );
    }
}
