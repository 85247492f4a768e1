//! Which half of the queue pair sends next.

use core::time::Duration;

use portolan_provider::verbs::QpState;

use super::QueuePair;
use super::context::Context;
use super::requester::{Broken, Built, Source};
use super::responder::Refused;
use super::unacknowledged::SendFailed;
use crate::engine::{MemoryTable, Path};

impl QueuePair {
    /// The next packet of either half. Acknowledgements come first; read data and requests take
    /// turns, so that neither direction waits for a long transfer of the other.
    pub(super) fn build_packet(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        budget_bytes: usize,
    ) -> Option<Built> {
        let requester_first = self.requester_turn && self.responder.is_streaming();
        if requester_first {
            self.requester_turn = false;
            let request = self.build_request(now, memory, budget_bytes);
            if request.is_some() {
                return request;
            }
        }
        self.requester_turn = self.responder.is_streaming();
        if let Some(response) = self.build_response(now, memory, budget_bytes) {
            return Some(response);
        }
        self.build_request(now, memory, budget_bytes)
    }

    /// The next packet of a service without acknowledgements, and its way if it is a datagram.
    pub(super) fn build_unacknowledged(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        budget_bytes: usize,
    ) -> Option<(Built, Option<Path>)> {
        if !self.is_sending() {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let (segments, out) = (&mut self.segments, &mut self.outbox);
        let sender = self.unacknowledged.as_mut()?.sender();
        match sender.transmit(&cx, budget_bytes, segments, out) {
            Ok(None) => {
                // The last of what was begun may just have been completed.
                self.note_drained();
                None
            }
            Ok(built) => built,
            Err(SendFailed) => {
                // Receiving goes on (IBTA 10.3.1.6).
                self.attr.state = QpState::Sqe;
                self.flush_sends();
                None
            }
        }
    }

    fn build_request(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        budget_bytes: usize,
    ) -> Option<Built> {
        if !self.is_sending() {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let (segments, out) = (&mut self.segments, &mut self.outbox);
        match self.requester.transmit(&cx, budget_bytes, segments, out) {
            Ok(built) => built,
            Err(Broken) => {
                self.responder.silence();
                self.enter_error();
                None
            }
        }
    }

    fn build_response(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        budget_bytes: usize,
    ) -> Option<Built> {
        loop {
            let cx = Context::new(&self.config, &self.attr, now, memory);
            let (segments, out) = (&mut self.segments, &mut self.outbox);
            match self.responder.transmit(&cx, budget_bytes, segments, out) {
                Ok(headers) => {
                    let source = Source::Segments;
                    return headers.map(|headers| Built { headers, source });
                }
                // The next round sends the refusal that took the place of all responses.
                Err(Refused) => self.enter_error(),
            }
        }
    }

    /// Whether requests go out; in SQD only those of work that was begun.
    fn is_sending(&self) -> bool {
        matches!(self.attr.state, QpState::Rts | QpState::Sqd)
    }
}
