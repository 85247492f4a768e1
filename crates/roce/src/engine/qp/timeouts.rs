//! What is due at a time.

use core::time::Duration;

use super::QueuePair;
use super::service::Service;

impl QueuePair {
    /// Does everything due at `now`. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        let (qpn, out) = (self.config.qpn, &mut self.outbox);
        let state = self.attr.state;
        let halves = match &mut self.service {
            Service::Rc(halves) => halves,
            Service::Uc(halves) => {
                halves.sender().on_timeout(state, now, qpn, out);
                return self.note_drained();
            }
            Service::Ud(_) => return,
        };
        halves.responder.send_delayed(Some(now));
        let result = halves.requester.on_timeout(state, now, qpn, out);
        if let Err(broken) = result {
            halves.broken(broken);
            self.enter_error();
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next; `None` if no timer runs. May change with every other
    /// call.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let halves = match &self.service {
            Service::Rc(halves) => halves,
            Service::Uc(halves) => return halves.next_timeout(self.attr.state),
            Service::Ud(_) => return None,
        };
        let of_requests = halves.requester.next_timeout();
        match halves.responder.next_timeout() {
            None => of_requests,
            Some(of_responses) => Some(of_requests.map_or(of_responses, |at| at.min(of_responses))),
        }
    }

    /// The host has no room to send the next packet or record. Until it has, the timer runs: a request fails when the time
    /// for an answer is over, although it was never sent. `anew`: there was room since the last call, but others took it, so
    /// that time starts again. On an unreliable connection, requests are lost after a second, as packets are on the
    /// wire. How long datagrams wait is the host's choice.
    pub fn wait_for_room(&mut self, now: Duration, anew: bool) {
        match &mut self.service {
            Service::Rc(halves) => {
                if anew {
                    halves.requester.note_room();
                }
                halves.requester.wait_for_room(self.attr.state, now);
            }
            Service::Uc(halves) => halves.sender().wait_for_room(now, anew),
            Service::Ud(_) => {}
        }
    }

    /// Makes a delayed acknowledgement the next response, because a request is sent that it can share a record with.
    #[inline(always)]
    pub fn send_delayed_acknowledgement(&mut self) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.responder.send_delayed(None);
        }
    }
}
