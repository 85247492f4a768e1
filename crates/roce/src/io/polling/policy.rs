//! The states of the progress thread.

use std::time::Duration;

use crate::io::polling::busy_poll::{BusyPoll, Look};
use crate::io::polling::watch_one_sided::WatchOneSided;

/// What the progress thread does between packets.
///
/// A one-sided request is a peer's write without immediate data, read or atomic. The program gets no completion for
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PollingState {
    /// No thread polls: the progress thread sleeps until a packet arrives.
    #[default]
    Sleep,
    /// No thread polls, and the progress thread has just executed a one-sided request: it polls for the next one
    /// before it sleeps.
    BusyPoll,
    /// Threads of the program poll and read the packets. The progress thread sleeps, and checks regularly whether
    /// they still poll.
    YieldToPollers,
    /// Threads polled, but none was active while a one-sided request waited: the progress thread sleeps until a
    /// packet arrives and reads beside them.
    WatchOneSided,
}

/// The state, and the counts that decide it.
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

    /// Polls before sleeping if the state says so. Returns whether a one-sided request was executed.
    pub(crate) fn busy_poll(
        &mut self,
        clock: impl Fn() -> Duration,
        look: impl FnMut(Duration) -> Look,
    ) -> bool {
        self.state == PollingState::BusyPoll && self.busy_poll.run(clock, look)
    }

    /// Called before the thread sleeps. Unless it watches beside pollers, `yields_to_pollers` decides whether it
    /// leaves the packets to them.
    pub(crate) fn sleep(&mut self, yields_to_pollers: impl FnOnce() -> bool) {
        if self.state != PollingState::WatchOneSided {
            self.state = match yields_to_pollers() {
                true => PollingState::YieldToPollers,
                false => PollingState::Sleep,
            };
        }
    }

    /// Called when the thread has slept and done its work. `found`: a one-sided request was among it. `busy_polled`:
    /// one was executed before it slept.
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
