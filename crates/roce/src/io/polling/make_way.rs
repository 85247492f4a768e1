//! When a polling thread yields its processor. If a machine has fewer processors than pollers, the thread that it waits
//! for may need this processor.
//!
//! Time decides, not the number of polls: polling rings takes a twentieth of the time of polling sockets. If other
//! programs compute, each yield costs their time slice, milliseconds. So the thread first polls long enough for an
//! answer that is under way.
//!
//! If the answers arrive while it yields, the other end shares its processor. Then the time that it polls before is lost
//! for both, so it yields early until it finds something without.

use std::cell::Cell;

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
const SHARED_FROM: u8 = 4;

/// The history of a thread's polls, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Polls {
    /// The time since which its polls have found nothing.
    fruitless_since: u64,
    /// The end of its last poll.
    ended: u64,
    /// Whether another thread ran, and not for long, when it yielded after its last poll.
    has_lent: bool,
    /// Number of answers in a row that arrived so.
    lent: u8,
}

impl Polls {
    const NEW: Self = Self {
        fruitless_since: 0,
        ended: 0,
        has_lent: false,
        lent: 0,
    };

    /// Records a poll. Returns whether the thread should yield.
    #[inline]
    fn note(&mut self, found_something: bool, now: u64) -> bool {
        // A thread that did something else since its last poll starts over.
        let was_away = now.saturating_sub(self.ended) > AFTER_NANOS;
        self.ended = now;
        let has_lent = std::mem::replace(&mut self.has_lent, false);
        if found_something {
            self.lent = match has_lent {
                true => self.lent.saturating_add(1),
                false => 0,
            };
        }
        if found_something || was_away {
            self.fruitless_since = now;
        }
        let after = match self.lent >= SHARED_FROM {
            true => AFTER_SHARED_NANOS,
            false => AFTER_NANOS,
        };
        now.saturating_sub(self.fruitless_since) > after
    }

    /// Records that the yield has returned.
    fn resume(&mut self, now: u64) {
        let took = now.saturating_sub(self.ended);
        self.has_lent = (SHARED_MIN_NANOS..SHARED_MAX_NANOS).contains(&took);
        if took >= SHARED_MAX_NANOS {
            // Another program computes.
            self.lent = 0;
        }
        self.ended = now;
    }
}

/// Yields if this thread's polls have found nothing for a while. `clock` returns the time in nanoseconds, as `now`.
#[inline]
pub(crate) fn after_poll(found_something: bool, now: u64, clock: impl FnOnce() -> u64) {
    thread_local! {
        static POLLS: Cell<Polls> = const { Cell::new(Polls::NEW) };
    }
    // Thread locals may already be destroyed.
    let _ = POLLS.try_with(|cell| {
        let mut polls = cell.get();
        if polls.note(found_something, now) {
            std::thread::yield_now();
            polls.resume(clock());
        }
        cell.set(polls);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls every `apart` nanoseconds without finding anything. Returns the index of the first poll that yields.
    fn first_that_makes_way(polls: &mut Polls, from: u64, apart: u64) -> u64 {
        let polled = (0..10_000).find(|poll| polls.note(false, from + poll * apart));
        polled.expect("no poll lets others run")
    }

    #[test]
    fn a_poller_makes_way_after_a_time_however_many_its_polls_are() {
        for apart in [50, 1000] {
            let mut polls = Polls::NEW;
            polls.note(true, 1_000_000);
            let first = first_that_makes_way(&mut polls, 1_000_000 + apart, apart);
            assert_eq!(
                (first + 1) * apart / 1000,
                AFTER_NANOS / 1000 + apart / 1000
            );
        }
    }

    #[test]
    fn a_found_packet_restarts_the_time() {
        let mut polls = Polls::NEW;
        polls.note(true, 1_000_000);
        assert!(!polls.note(false, 1_000_000 + AFTER_NANOS));
        polls.note(true, 1_000_001 + AFTER_NANOS);
        assert!(!polls.note(false, 1_000_001 + 2 * AFTER_NANOS));
    }

    #[test]
    fn a_thread_that_computed_does_not_make_way_at_its_first_poll() {
        let mut polls = Polls::NEW;
        polls.note(true, 1_000_000);
        assert!(!polls.note(false, 9_000_000));
        assert!(!polls.note(false, 9_000_000 + AFTER_NANOS));
        assert!(polls.note(false, 9_000_001 + AFTER_NANOS));
    }

    #[test]
    fn a_thread_that_made_way_and_finds_nothing_makes_way_again() {
        let mut polls = Polls::NEW;
        polls.note(true, 1_000_000);
        polls.note(false, 1_000_000 + AFTER_NANOS);
        assert!(polls.note(false, 1_000_001 + AFTER_NANOS));
        polls.resume(9_000_000);
        assert!(polls.note(false, 9_000_100));
    }

    /// Polls until it yields, for `took`, and finds an answer then. Returns how long it polled before.
    fn answered_after_yield(polls: &mut Polls, now: &mut u64, took: u64) -> u64 {
        let begun = *now;
        while !polls.note(false, *now) {
            *now += 100;
        }
        let polled = *now - begun;
        *now += took;
        polls.resume(*now);
        assert!(!polls.note(true, *now));
        polled
    }

    #[test]
    fn a_thread_that_shares_its_processor_with_the_other_end_yields_early() {
        let (mut polls, mut now) = (Polls::NEW, 1_000_000);
        polls.note(true, now);
        for _ in 0..SHARED_FROM {
            let polled = answered_after_yield(&mut polls, &mut now, 3000);
            assert!(polled > AFTER_NANOS);
        }
        for _ in 0..100 {
            let polled = answered_after_yield(&mut polls, &mut now, 3000);
            assert!(polled <= AFTER_SHARED_NANOS + 100, "{polled}");
        }
    }

    #[test]
    fn an_answer_without_a_yield_or_a_yield_to_a_program_that_computes_ends_early_yields() {
        for computes in [false, true] {
            let (mut polls, mut now) = (Polls::NEW, 1_000_000);
            polls.note(true, now);
            for _ in 0..=SHARED_FROM {
                answered_after_yield(&mut polls, &mut now, 3000);
            }
            match computes {
                true => {
                    answered_after_yield(&mut polls, &mut now, 3_000_000);
                }
                false => {
                    polls.note(true, now + 100);
                    now += 100;
                }
            }
            let polled = answered_after_yield(&mut polls, &mut now, 3000);
            assert!(polled > AFTER_NANOS, "{polled}");
        }
    }

    #[test]
    fn a_yield_that_ran_no_other_thread_does_not_mean_a_shared_processor() {
        let (mut polls, mut now) = (Polls::NEW, 1_000_000);
        polls.note(true, now);
        for _ in 0..100 {
            let polled = answered_after_yield(&mut polls, &mut now, 300);
            assert!(polled > AFTER_NANOS);
        }
    }
}
