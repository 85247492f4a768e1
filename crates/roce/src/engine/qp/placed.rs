//! Writes with immediate data whose bytes the host of the sender copies to the receiver's memory itself.

use core::time::Duration;

use portolan_provider::Result;
use portolan_provider::verbs::{QpState, QpType, RemoteAddr, SendOp, SendWr};
use portolan_wire::Qpn;

use super::QueuePair;
use super::context::Context;
use super::requester::Requester;
use crate::engine::{CompactWrite, Direct, MemoryTable};

/// The placed writes whose records are not acknowledged. A peer without a receive has not executed them, so a later
/// write must not replace their bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ahead<'a>(&'a Requester);

impl Ahead<'_> {
    /// Whether none of them has bytes in these `len` bytes of this process.
    #[inline]
    pub fn leave_free(&self, at: u64, len: u32) -> bool {
        self.0.is_free(at, len)
    }
}

impl QueuePair {
    /// The next request, if it is a write with immediate data whose bytes the host may copy to the peer's memory itself,
    /// where the writes before it leave room. Call [`note_placed`](Self::note_placed) after that. Without a copy, nothing
    /// has changed.
    pub fn poll_placeable(&mut self, memory: &MemoryTable) -> Option<(Direct<'_>, Ahead<'_>)> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let requester = &self.service.reliable()?.requester;
        let head = requester.placeable(&cx, &mut self.segments)?;
        let direct = head.with_bytes(requester, requester.index(), &self.segments);
        Some((direct, Ahead(requester)))
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

    /// The bytes of the request of [`poll_placeable`](Self::poll_placeable) are in the peer's memory, at `at` in this
    /// process. It still needs its record.
    pub fn note_placed(&mut self, at: u64) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.note_placed(at);
        }
    }

    /// Whether the host may copy the bytes of a request to the peer's memory before the request is posted by
    /// [`post_taken`](Self::post_taken), where the writes before it leave room.
    pub fn may_take(&self, memory: &MemoryTable) -> Option<Ahead<'_>> {
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let requester = &self.service.reliable()?.requester;
        let may_take = self.qp_type() == QpType::Rc && requester.may_take(&cx);
        may_take.then_some(Ahead(requester))
    }

    /// Posts a write with immediate data whose `len` bytes are in the peer's memory, at `at` in this process, and nowhere
    /// else. So only its record can be sent, now or again: if that becomes impossible, the request fails when the time
    /// for an answer is over.
    ///
    /// # Errors
    /// `InvalidState`, `InvalidArgument` for another operation, and `LimitReached` if the queue is full. An error posts
    /// nothing.
    pub fn post_taken(&mut self, wr: &SendWr<'_>, at: u64, len: u32) -> Result<()> {
        debug_assert!(
            matches!(wr.op, SendOp::RdmaWriteWithImm(..)),
            "no other request has a record"
        );
        self.check_posting()?;
        let mtu = self.attr.path_mtu.bytes() as u32;
        match self.service.reliable_mut() {
            Some(halves) => halves.requester.post_taken(wr, (at, len), mtu),
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
        let Some(halves) = self.service.reliable_mut().filter(|_| takes) else {
            self.outbox
                .counters
                .count_drop(crate::engine::DropReason::State);
            return;
        };
        let counters = &mut self.outbox.counters;
        counters.packets_received += 1;
        counters.bytes_received += u64::from(write.len);
        if halves.responder.expects(write.psn) {
            self.hear_peer();
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let Some(halves) = self.service.reliable_mut() else {
            return;
        };
        let responder = &mut halves.responder;
        let result = responder.take_write(&cx, write, &mut self.outbox);
        if result.is_err() {
            self.enter_error();
        }
    }
}
