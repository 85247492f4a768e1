//! Writes with immediate data whose bytes the host of the sender copies to the receiver's memory itself.

use core::time::Duration;

use portolan_provider::Result;
use portolan_provider::verbs::{AsyncEvent, QpState, QpType, RemoteAddr, SendOp, SendWr};
use portolan_wire::Qpn;

use super::QueuePair;
use super::context::Context;
use crate::engine::{CompactWrite, Direct, MemoryTable};

impl QueuePair {
    /// The next request, if it is a write with immediate data whose bytes the host may copy to the peer's memory itself.
    /// Call [`note_placed`](Self::note_placed) after that. Without a copy, nothing has changed.
    pub fn poll_placeable(&mut self, memory: &MemoryTable) -> Option<Direct<'_>> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let requester = &self.service.reliable()?.requester;
        let head = requester.placeable(&cx, &mut self.segments)?;
        Some(head.with_bytes(requester, requester.index(), &self.segments))
    }

    /// Whether the next request is a write with immediate data.
    #[inline]
    pub fn is_write_next(&self) -> bool {
        let halves = self.service.reliable();
        halves.is_some_and(|halves| halves.requester.is_write_next())
    }

    /// The memory and length of the next request, if it is a write with immediate data that waits only for the
    /// acknowledgement of the write before it until the host may place it.
    pub fn waiting_write(&self) -> Option<(RemoteAddr, u32)> {
        self.service.reliable()?.requester.waiting_write()
    }

    /// Whether the write of [`waiting_write`](Self::waiting_write) really waits. Otherwise its packets are sent.
    pub fn hold_writes(&mut self, holds: bool) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.hold_writes(holds);
        }
    }

    /// The bytes of the request of [`poll_placeable`](Self::poll_placeable) are in the peer's memory. It still needs its
    /// record.
    pub fn note_placed(&mut self) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.note_placed();
        }
    }

    /// Whether the host may copy the bytes of a request to the peer's memory before the request is posted by
    /// [`post_taken`](Self::post_taken).
    pub fn may_take(&self, memory: &MemoryTable) -> bool {
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let halves = self.service.reliable();
        self.qp_type() == QpType::Rc && halves.is_some_and(|halves| halves.requester.may_take(&cx))
    }

    /// Posts a write with immediate data whose `len` bytes are in the peer's memory, and nowhere else. So only its record
    /// can be sent, now or again: if that becomes impossible, the request fails when the time for an answer is over.
    ///
    /// # Errors
    /// `InvalidState`, `InvalidArgument` for another operation, and `LimitReached` if the queue is full. An error posts
    /// nothing.
    pub fn post_taken(&mut self, wr: &SendWr<'_>, len: u32) -> Result<()> {
        debug_assert!(
            matches!(wr.op, SendOp::RdmaWriteWithImm(..)),
            "no other request has a record"
        );
        self.check_posting()?;
        let mtu = self.attr.path_mtu.bytes() as u32;
        match self.service.reliable_mut() {
            Some(halves) => halves.requester.post_taken(wr, len, mtu),
            None => Ok(()),
        }
    }

    /// The receiver, and the record of the next request, if that is a write with immediate data that has no bytes or
    /// whose bytes are in the peer's memory.
    #[inline]
    pub fn poll_write(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
    ) -> Option<(Qpn, CompactWrite)> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let halves = self.service.reliable_mut()?;
        if !halves.responder.only_acknowledges() {
            return None;
        }
        let write = halves.requester.write_record(&cx, &mut self.outbox)?;
        let counters = &mut self.outbox.counters;
        counters.packets_sent += 1;
        counters.bytes_sent += u64::from(write.len);
        Some((self.attr.dest_qpn, write))
    }

    /// Handles the record of a write of the peer.
    pub fn take_write(&mut self, now: Duration, memory: &MemoryTable, write: &CompactWrite) {
        let takes = matches!(
            self.attr.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let Some(halves) = self.service.reliable_mut().filter(|_| takes) else {
            self.outbox
                .counters
                .count_drop(crate::engine::DropReason::State);
            return;
        };
        let counters = &mut self.outbox.counters;
        counters.packets_received += 1;
        counters.bytes_received += u64::from(write.len);
        if cx.attr.state == QpState::Rtr
            && !self.is_established
            && halves.responder.expects(write.psn)
        {
            self.is_established = true;
            self.outbox.raise(AsyncEvent::CommEst(self.config.qpn));
        }
        if halves
            .responder
            .take_write(&cx, write, &mut self.outbox)
            .is_err()
        {
            self.enter_error();
        }
    }
}
