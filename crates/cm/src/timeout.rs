//! Timeouts: what each state does at its deadline.

use core::time::Duration;

use portolan_provider::cm::IdNumber;

use crate::engine::Cm;
use crate::mutant::{Mutant, is_planted};
use crate::retry::Due;
use crate::state::State;

impl Cm {
    /// Does everything due at `now`. Calling it early or late is harmless. If a queue fills up, the rest waits for the
    /// next call.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.pace.refresh(now);
        while self.full().is_none() {
            if self.refuse_held(now) {
                continue;
            }
            let Some(number) = self.timers.pop_due(now) else {
                return;
            };
            let Some(id) = self.ids.get_mut(number) else {
                continue;
            };
            id.deadline = None;
            match id.state {
                State::AddrQuery => self.address_timed_out(number),
                State::Timewait => self.timewait_over(now, number),
                state => self.request_due(now, number, state),
            }
        }
    }

    fn request_due(&mut self, now: Duration, number: IdNumber, state: State) {
        let id = self.ids.get_mut(number);
        let Some(request) = id.and_then(|id| id.request_mut()?.as_mut()) else {
            return;
        };
        match request.advance(now) {
            Due::SendAgain => {
                let due_at = request.due_at();
                if !is_planted(Mutant::TimerLost) {
                    self.set_deadline(number, Some(due_at));
                }
                let is_rep = matches!(state, State::RepSent | State::MraRepRcvd);
                let is_question = state == State::SidrReqSent;
                if is_rep && is_planted(Mutant::RepSentOnce)
                    || is_question && is_planted(Mutant::QuestionAskedOnce)
                {
                    return;
                }
                self.send_request_again(number);
            }
            Due::GiveUp => self.unanswered(now, number),
        }
    }
}
