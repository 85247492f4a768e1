//! When a polling thread yields its processor. If a machine has fewer processors than pollers, the thread that it waits
//! for may need this processor.
//!
//! Time decides, not the number of polls: polling rings takes a twentieth of the time of polling sockets. If other
//! programs compute, each yield costs their time slice, milliseconds. So the thread first polls long enough for an
//! answer that is under way.
//!
//! If the answers arrive while it yields, the other end shares its processor. Then the time that it polls before is lost
//! for both, so it yields early until it finds something without.
//!
//! Two threads that yield to each other are always ready to run, and the kernel may leave both on one processor for seconds
//! while another one is idle. It looks for an idle processor when a thread wakes up. So a thread that shares its processor
//! sleeps for a moment now and then.

use std::cell::Cell;
use std::time::Duration;

/// How long a poller finds nothing before it yields. Longer than a round trip through memory on idle processors. Short
/// enough if both ends share one processor, because the other end runs only after this time.
const AFTER_NANOS: u64 = 20_000;
/// The same for a poller whose processor the other end shares.
const AFTER_SHARED_NANOS: u64 = 500;
/// A yield in which the other end ran takes longer than this: it switches threads twice.
const SHARED_MIN_NANOS: u64 = 1_000;
/// A yield in which only the other end ran takes less than this.
const SHARED_MAX_NANOS: u64 = 200_000;
/// Number of answers in a row that arrived during a yield, after which the other end shares the processor.
const SHARED_FROM: i8 = 4;

/// How long a thread sleeps to get another processor. The kernel adds its timer slack, by default 50 µs.
const SLEEP: Duration = Duration::from_micros(1);
/// The time from one such sleep to the next. It doubles while they do not help, up to the maximum.
const SLEEP_INTERVAL_MIN_NANOS: u64 = 1_000_000;
/// See [`SLEEP_INTERVAL_MIN_NANOS`].
const SLEEP_INTERVAL_MAX_NANOS: u64 = 32_000_000;
/// A sleep that takes longer costs too much, for example because the process has a large timer slack.
const SLEEP_MAX_NANOS: u64 = 1_000_000;
/// The interval after such a sleep.
const SLEEP_INTERVAL_SLOW_NANOS: u64 = 1_000_000_000;

/// What a thread does between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    Yield,
    /// Sleep, to get another processor.
    Sleep,
}

/// The history of a thread's polls, nanoseconds.
#[derive(Debug)]
struct Polls {
    /// The time since which its polls have found nothing.
    fruitless_since: Cell<u64>,
    /// The end of its last poll.
    ended: Cell<u64>,
    /// Whether another thread ran, and not for long, when it yielded after its last poll.
    has_lent: Cell<bool>,
    /// Number of answers in a row that arrived so. If negative, that arrived otherwise.
    lent: Cell<i8>,
    /// When it may sleep again to get another processor.
    sleeps_from: Cell<u64>,
    /// The time after that sleep until the next.
    sleep_interval: Cell<u64>,
}

impl Polls {
    const fn new() -> Self {
        Self {
            fruitless_since: Cell::new(0),
            ended: Cell::new(0),
            has_lent: Cell::new(false),
            lent: Cell::new(0),
            sleeps_from: Cell::new(0),
            sleep_interval: Cell::new(SLEEP_INTERVAL_MIN_NANOS),
        }
    }

    /// Records a poll. Returns what the thread should do before the next.
    #[inline]
    fn note(&self, found_something: bool, now: u64) -> Between {
        let ended = self.ended.replace(now);
        let has_lent = self.has_lent.replace(false);
        if found_something {
            self.note_answer(has_lent, now);
            self.fruitless_since.set(now);
            return Between::Nothing;
        }
        // A thread that did something else since its last poll starts over.
        let was_away = now.saturating_sub(ended) > AFTER_NANOS;
        if was_away {
            self.fruitless_since.set(now);
        }
        let shares = self.lent.get() >= SHARED_FROM;
        let after = match shares {
            true => AFTER_SHARED_NANOS,
            false => AFTER_NANOS,
        };
        if now.saturating_sub(self.fruitless_since.get()) <= after {
            return Between::Nothing;
        }
        self.make_way(shares, now)
    }

    #[inline]
    fn note_answer(&self, has_lent: bool, now: u64) {
        let lent = self.lent.get();
        let lent = match has_lent {
            true => lent.max(0).saturating_add(1),
            false => lent.min(0).saturating_sub(1),
        };
        self.lent.set(lent);
        if lent == -SHARED_FROM {
            // It has a processor of its own.
            let soon = now + SLEEP_INTERVAL_MIN_NANOS;
            self.sleep_interval.set(SLEEP_INTERVAL_MIN_NANOS);
            self.sleeps_from.set(self.sleeps_from.get().min(soon));
        }
    }

    #[cold]
    fn make_way(&self, shares: bool, now: u64) -> Between {
        if !shares || now < self.sleeps_from.get() {
            return Between::Yield;
        }
        let interval = self.sleep_interval.get();
        self.sleeps_from.set(now + interval);
        if interval < SLEEP_INTERVAL_MAX_NANOS {
            self.sleep_interval.set(interval * 2);
        }
        Between::Sleep
    }

    /// As [`Polls::resume`], after a sleep.
    fn awake(&self, now: u64) {
        if now.saturating_sub(self.ended.get()) > SLEEP_MAX_NANOS {
            self.sleep_interval.set(SLEEP_INTERVAL_SLOW_NANOS);
            self.sleeps_from.set(now + SLEEP_INTERVAL_SLOW_NANOS);
        }
        self.resume(now);
    }

    /// Records that the yield has returned.
    fn resume(&self, now: u64) {
        let took = now.saturating_sub(self.ended.get());
        self.has_lent
            .set((SHARED_MIN_NANOS..SHARED_MAX_NANOS).contains(&took));
        if took >= SHARED_MAX_NANOS {
            // Another program computes.
            self.lent.set(0);
        }
        self.ended.set(now);
    }
}

/// Yields or sleeps if this thread's polls have found nothing for a while. `clock` returns the time in nanoseconds, as `now`.
#[inline]
pub(crate) fn after_poll(found_something: bool, now: u64, clock: impl FnOnce() -> u64) {
    thread_local! {
        static POLLS: Polls = const { Polls::new() };
    }
    // Thread locals may already be destroyed.
    let _ = POLLS.try_with(|polls| match polls.note(found_something, now) {
        Between::Nothing => {}
        Between::Sleep if portolan_threads::processors() > 1 => {
            std::thread::sleep(SLEEP);
            polls.awake(clock());
        }
        Between::Yield | Between::Sleep => {
            std::thread::yield_now();
            polls.resume(clock());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls every `apart` nanoseconds without finding anything. Returns the index of the first poll that yields.
    fn first_that_makes_way(polls: &Polls, from: u64, apart: u64) -> u64 {
        let polled =
            (0..10_000).find(|poll| polls.note(false, from + poll * apart) != Between::Nothing);
        polled.expect("no poll lets others run")
    }

    #[test]
    fn a_poller_makes_way_after_a_time_however_many_its_polls_are() {
        for apart in [50, 1000] {
            let polls = Polls::new();
            polls.note(true, 1_000_000);
            let first = first_that_makes_way(&polls, 1_000_000 + apart, apart);
            assert_eq!(
                (first + 1) * apart / 1000,
                AFTER_NANOS / 1000 + apart / 1000
            );
        }
    }

    #[test]
    fn a_found_packet_restarts_the_time() {
        let polls = Polls::new();
        polls.note(true, 1_000_000);
        assert_eq!(polls.note(false, 1_000_000 + AFTER_NANOS), Between::Nothing);
        polls.note(true, 1_000_001 + AFTER_NANOS);
        assert_eq!(
            polls.note(false, 1_000_001 + 2 * AFTER_NANOS),
            Between::Nothing
        );
    }

    #[test]
    fn a_thread_that_computed_does_not_make_way_at_its_first_poll() {
        let polls = Polls::new();
        polls.note(true, 1_000_000);
        assert_eq!(polls.note(false, 9_000_000), Between::Nothing);
        assert_eq!(polls.note(false, 9_000_000 + AFTER_NANOS), Between::Nothing);
        assert_eq!(polls.note(false, 9_000_001 + AFTER_NANOS), Between::Yield);
    }

    #[test]
    fn a_thread_that_made_way_and_finds_nothing_makes_way_again() {
        let polls = Polls::new();
        polls.note(true, 1_000_000);
        polls.note(false, 1_000_000 + AFTER_NANOS);
        assert_eq!(polls.note(false, 1_000_001 + AFTER_NANOS), Between::Yield);
        polls.resume(9_000_000);
        assert_eq!(polls.note(false, 9_000_100), Between::Yield);
    }

    /// Polls until it yields, for `took`, and finds an answer then. Returns how long it polled before.
    fn answered_after_yield(polls: &Polls, now: &mut u64, took: u64) -> u64 {
        let begun = *now;
        while polls.note(false, *now) == Between::Nothing {
            *now += 100;
        }
        let polled = *now - begun;
        *now += took;
        polls.resume(*now);
        assert_eq!(polls.note(true, *now), Between::Nothing);
        polled
    }

    #[test]
    fn a_thread_that_shares_its_processor_with_the_other_end_yields_early() {
        let (polls, mut now) = (Polls::new(), 1_000_000);
        polls.note(true, now);
        for _ in 0..SHARED_FROM {
            let polled = answered_after_yield(&polls, &mut now, 3000);
            assert!(polled > AFTER_NANOS);
        }
        for _ in 0..100 {
            let polled = answered_after_yield(&polls, &mut now, 3000);
            assert!(polled <= AFTER_SHARED_NANOS + 100, "{polled}");
        }
    }

    #[test]
    fn an_answer_without_a_yield_or_a_yield_to_a_program_that_computes_ends_early_yields() {
        for computes in [false, true] {
            let (polls, mut now) = (Polls::new(), 1_000_000);
            polls.note(true, now);
            for _ in 0..=SHARED_FROM {
                answered_after_yield(&polls, &mut now, 3000);
            }
            match computes {
                true => {
                    answered_after_yield(&polls, &mut now, 3_000_000);
                }
                false => {
                    polls.note(true, now + 100);
                    now += 100;
                }
            }
            let polled = answered_after_yield(&polls, &mut now, 3000);
            assert!(polled > AFTER_NANOS, "{polled}");
        }
    }

    #[test]
    fn a_yield_that_ran_no_other_thread_does_not_mean_a_shared_processor() {
        let (polls, mut now) = (Polls::new(), 1_000_000);
        polls.note(true, now);
        for _ in 0..100 {
            let polled = answered_after_yield(&polls, &mut now, 300);
            assert!(polled > AFTER_NANOS);
        }
    }

    /// The times at which a thread sleeps whose answers arrive, within a second, while it yields.
    fn sleeps(polls: &Polls, now: &mut u64, yields: u64) -> Vec<u64> {
        let (begun, mut slept) = (*now, Vec::new());
        while *now < begun + 1_000_000_000 {
            let way = polls.note(false, *now);
            match way {
                Between::Nothing => *now += 100,
                Between::Yield | Between::Sleep => {
                    if way == Between::Sleep {
                        slept.push(*now - begun);
                    }
                    *now += yields;
                    polls.resume(*now);
                    polls.note(true, *now);
                }
            }
        }
        slept
    }

    #[test]
    fn a_thread_that_shares_its_processor_sleeps_soon_and_then_ever_less_often() {
        let (polls, mut now) = (Polls::new(), 1_000_000);
        polls.note(true, now);
        let slept = sleeps(&polls, &mut now, 3000);
        assert!(slept[0] < 200_000, "{slept:?}");
        let apart: Vec<_> = slept
            .windows(2)
            .map(|two| (two[1] - two[0]) / 1_000_000)
            .collect();
        assert_eq!(apart[..6], [1, 2, 4, 8, 16, 32]);
        assert!(
            apart[6..].iter().all(|&apart_ms| apart_ms == 32),
            "{apart:?}"
        );
        // It got another processor, and shares that one, too.
        for _ in 0..10 {
            polls.note(true, now);
        }
        let again = sleeps(&polls, &mut now, 3000);
        assert!(again.len() + 1 >= slept.len(), "{again:?}");
    }

    #[test]
    fn a_thread_whose_sleep_took_long_does_not_sleep_again_for_a_second() {
        let (polls, mut now) = (Polls::new(), 1_000_000);
        polls.note(true, now);
        assert!(!sleeps(&polls, &mut now, 3000).is_empty());
        polls.ended.set(now);
        now += 5_000_000;
        polls.awake(now);
        assert!(sleeps(&polls, &mut now, 3000).is_empty());
        assert_eq!(sleeps(&polls, &mut now, 3000).len(), 1);
    }

    #[test]
    fn a_thread_that_does_not_share_its_processor_never_sleeps() {
        let (polls, mut now) = (Polls::new(), 1_000_000);
        polls.note(true, now);
        assert!(sleeps(&polls, &mut now, 300).is_empty());
        assert!(sleeps(&polls, &mut now, 3_000_000).is_empty());
    }
}
