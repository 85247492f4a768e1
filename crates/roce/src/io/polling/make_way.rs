//! When a thread that polls lets others run: on a machine with fewer processors than pollers, what it waits for may be
//! waiting for its processor.
//!
//! By time, not by the number of polls: one of rings takes a twentieth of one of sockets. Where other programs compute, each
//! time costs what the scheduler gives them, milliseconds, so an answer that is under way is waited for.

use std::cell::Cell;

/// How long a poller finds nothing before it lets others run: above what a message and its answer take through memory on idle
/// processors, and little where both ends have one processor, which the other end gets after this time.
const AFTER_NANOS: u64 = 20_000;

/// What a thread's polls found.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    /// Since when it has found nothing.
    fruitless_since: u64,
    /// The end of its last poll.
    ended: u64,
}

impl Polls {
    /// Notes a poll, and whether the thread is to let others run.
    fn note(&mut self, found_something: bool, now: u64) -> bool {
        // Who comes back from something else starts anew.
        let was_away = now.saturating_sub(self.ended) > AFTER_NANOS;
        self.ended = now;
        if found_something || was_away {
            self.fruitless_since = now;
        }
        now.saturating_sub(self.fruitless_since) > AFTER_NANOS
    }

    /// Notes that the others have run.
    fn resume(&mut self, now: u64) {
        self.ended = now;
    }
}

/// Lets other threads run once this thread has polled for a while and found nothing. `clock` reads nanoseconds.
pub(crate) fn after_poll(found_something: bool, now: u64, clock: impl FnOnce() -> u64) {
    thread_local! {
        static POLLS: Cell<Polls> = const { Cell::new(Polls { fruitless_since: 0, ended: 0 }) };
    }
    // Missing while a thread's locals are destroyed.
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

    /// Polls that find nothing, so many nanoseconds apart; which of them first lets others run.
    fn first_that_makes_way(polls: &mut Polls, from: u64, apart: u64) -> u64 {
        let polled = (0..10_000).find(|poll| polls.note(false, from + poll * apart));
        polled.expect("no poll lets others run")
    }

    #[test]
    fn a_poller_makes_way_after_a_time_however_many_its_polls_are() {
        for apart in [50, 1000] {
            let mut polls = Polls::default();
            polls.note(true, 1_000_000);
            let first = first_that_makes_way(&mut polls, 1_000_000 + apart, apart);
            assert_eq!(
                (first + 1) * apart / 1000,
                AFTER_NANOS / 1000 + apart / 1000
            );
        }
    }

    #[test]
    fn what_it_finds_starts_the_time_anew() {
        let mut polls = Polls::default();
        polls.note(true, 1_000_000);
        assert!(!polls.note(false, 1_000_000 + AFTER_NANOS));
        polls.note(true, 1_000_001 + AFTER_NANOS);
        assert!(!polls.note(false, 1_000_001 + 2 * AFTER_NANOS));
    }

    #[test]
    fn a_thread_that_computed_does_not_make_way_at_its_first_poll() {
        let mut polls = Polls::default();
        polls.note(true, 1_000_000);
        assert!(!polls.note(false, 9_000_000));
        assert!(!polls.note(false, 9_000_000 + AFTER_NANOS));
        assert!(polls.note(false, 9_000_001 + AFTER_NANOS));
    }

    #[test]
    fn a_thread_that_made_way_and_finds_nothing_makes_way_again() {
        let mut polls = Polls::default();
        polls.note(true, 1_000_000);
        polls.note(false, 1_000_000 + AFTER_NANOS);
        assert!(polls.note(false, 1_000_001 + AFTER_NANOS));
        polls.resume(9_000_000);
        assert!(polls.note(false, 9_000_100));
    }
}
