//! State changes. Only this file changes the state of an id.

use core::time::Duration;

use portolan_provider::cm::IdNumber;

use crate::engine::Cm;
use crate::state::{Event, State};

impl Cm {
    /// Applies the transition table to an id. Returns `false` and counts the event if the table has no entry for it.
    pub(crate) fn advance(&mut self, now: Duration, number: IdNumber, event: Event) -> bool {
        let Some(next) = self.ids.get(number).and_then(|id| id.state.after(event)) else {
            self.drop_unexpected();
            return false;
        };
        self.enter(now, number, next);
        true
    }

    /// Puts an id into a state and does what entering it requires. Reentering the current state keeps the timers.
    pub(crate) fn enter(&mut self, now: Duration, number: IdNumber, next: State) {
        let Some(id) = self.ids.get_mut(number) else {
            return;
        };
        if core::mem::replace(&mut id.state, next) == next {
            return;
        }
        if !next.is_half_open() {
            self.end_half_open(number);
        }
        match next {
            State::Timewait => self.begin_timewait(now, number),
            State::Closed => {
                self.settle(number);
                self.ids.forget_remote(number);
            }
            State::RepRcvd
            | State::ReqRcvd
            | State::Established
            | State::DreqRcvd
            | State::SidrResolved
            | State::SidrReqRcvd
            | State::SidrReplied
            | State::DeviceRemoval => {
                self.settle(number);
            }
            // These states send a message and wait for its answer, or continue to wait.
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::DreqSent
            | State::SidrReqSent => {}
            // No connection yet.
            State::Idle
            | State::AddrBound
            | State::Listen
            | State::AddrQuery
            | State::AddrResolved
            | State::RouteResolved => {}
        }
    }

    /// Ends the wait for an answer (`ib_cancel_mad`).
    pub(crate) fn settle(&mut self, number: IdNumber) {
        let id = self.ids.get_mut(number);
        if let Some(request) = id.and_then(|id| id.request_mut()) {
            *request = None;
        }
        self.set_deadline(number, None);
    }
}
