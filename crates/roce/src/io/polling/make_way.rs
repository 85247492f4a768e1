//! When a polling thread yields its processor. If a machine has fewer processors than pollers, the thread that it waits
//! for may need this processor.
//!
//! Time decides, not the number of polls: polling rings takes a twentieth of the time of polling sockets. If other
//! programs compute, each yield costs their time slice, milliseconds. So the thread first polls long enough for an
//! answer that is under way.

use std::cell::Cell;

/// How long a poller finds nothing before it yields. Longer than a round trip through memory on idle processors. Short
/// enough if both ends share one processor, because the other end runs only after this time.
const AFTER_NANOS: u64 = 20_000;

/// The history of a thread's polls, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    /// The time since which its polls have found nothing.
    fruitless_since: u64,
    /// The end of its last poll.
    ended: u64,
}

impl Polls {
    /// Records a poll. Returns whether the thread should yield.
    fn note(&mut self, found_something: bool, now: u64) -> bool {
        // A thread that did something else since its last poll starts over.
        let was_away = now.saturating_sub(self.ended) > AFTER_NANOS;
        self.ended = now;
        if found_something || was_away {
            self.fruitless_since = now;
        }
        now.saturating_sub(self.fruitless_since) > AFTER_NANOS
    }

    /// Records that the yield has returned.
    fn resume(&mut self, now: u64) {
        self.ended = now;
    }
}

/// Yields if this thread's polls have found nothing for a while. `clock` returns the time in nanoseconds, as `now`.
pub(crate) fn after_poll(found_something: bool, now: u64, clock: impl FnOnce() -> u64) {
    thread_local! {
        static POLLS: Cell<Polls> = const { Cell::new(Polls { fruitless_since: 0, ended: 0 }) };
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
    fn a_found_packet_restarts_the_time() {
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
