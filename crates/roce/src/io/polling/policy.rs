//! How the progress thread waits for packets.

use std::time::Duration;

use crate::io::polling::busy_poll::{BusyPoll, Look};
use crate::io::polling::watch_one_sided::WatchOneSided;

/// What the progress thread does between packets.
///
/// A one-sided request is a write without immediate data, a read or an atomic of a peer: it gives the program no
/// completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PollingState {
    /// Nobody polls: it sleeps until a packet comes.
    #[default]
    Sleep,
    /// Nobody polls, and it has just carried out a one-sided request: it looks for the next one before it sleeps.
    BusyPoll,
    /// Threads of the program poll and take the packets. It sleeps, and looks now and then whether they still do.
    YieldToPollers,
    /// Threads poll, but they were away while a one-sided request waited: it sleeps until a packet comes, beside them.
    WatchOneSided,
}

/// The state, and what it follows from.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    state: PollingState,
    watch_one_sided: WatchOneSided,
    busy_poll: BusyPoll,
}

impl Policy {
    pub(crate) fn state(&self) -> PollingState {
        self.state
    }

    /// Looks before it sleeps, if it is to; whether a one-sided request came.
    pub(crate) fn busy_poll(
        &mut self,
        clock: impl Fn() -> Duration,
        look: impl FnMut(Duration) -> Look,
    ) -> bool {
        self.state == PollingState::BusyPoll && self.busy_poll.run(clock, look)
    }

    /// The thread is about to sleep: it watches beside pollers, or `yields_to_pollers` says whether it leaves the
    /// packets to them.
    pub(crate) fn sleep(&mut self, yields_to_pollers: impl FnOnce() -> bool) {
        if self.state != PollingState::WatchOneSided {
            self.state = match yields_to_pollers() {
                true => PollingState::YieldToPollers,
                false => PollingState::Sleep,
            };
        }
    }

    /// The thread has slept and done what there was to do: `found` says whether there was a one-sided request, and
    /// `busy_polled` whether there was one before it slept.
    pub(crate) fn awake(&mut self, found: bool, busy_polled: bool) {
        let yielded = self.state == PollingState::YieldToPollers;
        self.watch_one_sided.woken(yielded, found);
        self.state = match (self.watch_one_sided.is_kept(), found || busy_polled) {
            (true, _) => PollingState::WatchOneSided,
            (false, true) => PollingState::BusyPoll,
            (false, false) => PollingState::Sleep,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(polled: bool, found: bool) -> (PollingState, PollingState) {
        let mut policy = Policy::default();
        policy.sleep(|| polled);
        let asleep = policy.state();
        policy.awake(found, false);
        (asleep, policy.state())
    }

    #[test]
    fn each_state_follows_from_pollers_and_arrivals() {
        assert_eq!(
            after(false, false),
            (PollingState::Sleep, PollingState::Sleep)
        );
        assert_eq!(
            after(false, true),
            (PollingState::Sleep, PollingState::BusyPoll)
        );
        assert_eq!(
            after(true, false),
            (PollingState::YieldToPollers, PollingState::Sleep)
        );
        assert_eq!(
            after(true, true),
            (PollingState::YieldToPollers, PollingState::WatchOneSided)
        );
    }

    #[test]
    fn while_it_watches_beside_pollers_it_does_not_yield_to_them() {
        let mut policy = Policy::default();
        policy.sleep(|| true);
        policy.awake(true, false);
        policy.sleep(|| panic!("it must not ask whether to yield"));
        assert_eq!(policy.state(), PollingState::WatchOneSided);
    }

    #[test]
    fn a_request_found_before_sleeping_makes_it_poll_again() {
        let mut policy = Policy::default();
        policy.sleep(|| false);
        policy.awake(false, true);
        assert_eq!(policy.state(), PollingState::BusyPoll);
    }
}
