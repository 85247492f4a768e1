//! Writes that the peer's process carries out: it copies the bytes out of this process's memory itself.
//!
//! No packet is sent for such a request, as for one that this side's host [executes](super::requester). While the peer
//! copies, later requests wait.

use core::time::Duration;

use portolan_provider::verbs::{QpState, QpType};

use super::QueuePair;
use super::context::Context;
use crate::engine::MemoryTable;

impl QueuePair {
    /// Starts no request until [`release_requests`](Self::release_requests): the peer carries out the oldest one.
    pub fn hold_requests(&mut self) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.held = true;
        }
    }

    /// The keys of this side's memory in the oldest request.
    pub fn oldest_lkeys(&self) -> impl Iterator<Item = u32> {
        let halves = self.service.reliable().into_iter();
        halves.flat_map(|halves| halves.requester.oldest_lkeys())
    }

    /// Whether this side's memory of the oldest request is registered: what the peer has read belongs to the request.
    pub fn is_oldest_registered(&self, memory: &MemoryTable) -> bool {
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let halves = self.service.reliable();
        halves.is_some_and(|halves| halves.requester.is_oldest_registered(&cx))
    }

    /// Whether it is in a state in which it sends requests.
    pub fn is_sending(&self) -> bool {
        matches!(self.attr.state, QpState::Rts | QpState::Sqd)
    }

    /// Undoes [`hold_requests`](Self::hold_requests). Returns whether the oldest request is still the one that the peer
    /// carries out: not if the queue pair has failed meanwhile.
    pub fn release_requests(&mut self) -> bool {
        let is_alive = self.is_sending();
        let Some(halves) = self.service.reliable_mut() else {
            return false;
        };
        core::mem::take(&mut halves.requester.held) && is_alive
    }

    /// The memory that a write of the peer's is for, if the write is allowed and the queue pair is between two
    /// messages.
    pub fn pulled_write(
        &self,
        memory: &MemoryTable,
        rkey: u32,
        addr: u64,
        len: u32,
    ) -> Option<u64> {
        let receives = matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if self.qp_type() != QpType::Rc || !receives {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let responder = &self.service.reliable()?.responder;
        responder.check_pulled(&cx, rkey, addr, len)
    }
}
