//! What is due at a time.

use core::time::Duration;

use super::QueuePair;

impl QueuePair {
    /// Does everything due at `now`. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        let Some(halves) = self.service.reliable_mut() else {
            return;
        };
        halves.responder.send_delayed(Some(now));
        let (qpn, out) = (self.config.qpn, &mut self.outbox);
        let state = self.attr.state;
        let result = halves.requester.on_timeout(state, now, qpn, out);
        if let Err(broken) = result {
            halves.broken(broken);
            self.enter_error();
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next; `None` if no timer runs. May change with every other
    /// call.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let halves = self.service.reliable()?;
        let timeouts = [
            halves.requester.next_timeout(),
            halves.responder.next_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The host has no room to send the next packet or record. Until it has, the timer runs: a request fails when the time
    /// for an answer is over, although it was never sent. `anew`: there was room since the last call, but others took it, so
    /// that time starts again. On a service without acknowledgements, requests wait without a limit.
    pub fn wait_for_room(&mut self, now: Duration, anew: bool) {
        let state = self.attr.state;
        if let Some(halves) = self.service.reliable_mut() {
            if anew {
                halves.requester.note_room();
            }
            halves.requester.wait_for_room(state, now);
        }
    }

    /// Makes a delayed acknowledgement the next response, because a request is sent that it can share a record with.
    #[inline]
    pub fn send_delayed_acknowledgement(&mut self) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.responder.send_delayed(None);
        }
    }
}
