//! One-sided requests that the host executes itself, in memory that it shares with the peer.
//!
//! No packet is sent for such a request, so it uses no PSN on the wire: the first PSN moves back by as many as the
//! request would have used, and the next packet has the PSN that the peer expects.

use alloc::vec::Vec;

use portolan_provider::verbs::{QpState, RemoteAddr, SendData, SendOp, SendWr};
use portolan_wire::Qpn;

use super::{EntryData, Requester, SendEntry};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::{self, SgeCursor};
use crate::engine::qp::send_entry::success;
use crate::engine::{AtomicKind, Direct, DirectOperation, Payload, PlannedDirect, Segment};

/// A request without the borrow of its bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::qp) struct DirectHead {
    operation: DirectOperation,
    addr: u64,
    rkey: u32,
    len: u32,
    is_inline: bool,
}

impl DirectHead {
    /// The request of an entry, if its local memory may be used. Fills `segments` with that memory.
    #[inline]
    pub(super) fn of(
        entry: &SendEntry,
        (operation, remote): (DirectOperation, RemoteAddr),
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
    ) -> Option<Self> {
        let is_inline = match &entry.data {
            EntryData::Inline => true,
            EntryData::Taken => return None,
            EntryData::Sges | EntryData::One(_) => {
                let (memory, whole) = ((cx.memory, entry.awaits_data()), 0..u64::from(entry.len));
                let mut cursor = SgeCursor::default();
                let gathered = cursor.gather(entry.sges(), whole, cx.pd, memory, segments);
                gathered.ok()?;
                false
            }
        };
        Some(Self {
            operation,
            addr: remote.addr,
            rkey: remote.rkey,
            len: entry.len,
            is_inline,
        })
    }

    /// The request with its bytes: those of the entry at `index`, or `segments`.
    #[inline]
    pub(in crate::engine::qp) fn with_bytes<'a>(
        self,
        requester: &'a Requester,
        index: usize,
        segments: &'a [Segment],
    ) -> Direct<'a> {
        Direct {
            operation: self.operation,
            addr: self.addr,
            rkey: self.rkey,
            len: self.len,
            local: match self.is_inline {
                true => Payload::Inline(requester.inline_bytes(index)),
                false => Payload::Segments(segments),
            },
        }
    }
}

impl Requester {
    /// The oldest request, if the host may execute it itself: a one-sided request that is not empty, with nothing in
    /// flight before it, whose local memory may be used. Fills `segments` with that memory.
    #[inline]
    pub(in crate::engine::qp) fn direct(
        &self,
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
    ) -> Option<DirectHead> {
        let is_idle =
            !self.held && self.una == self.frontier && self.next == self.una && self.entry == 0;
        let entry = self.queue.front().filter(|entry| entry.first == self.una)?;
        if !is_idle || cx.attr.state != QpState::Rts || entry.len == 0 || entry.xrceth.is_some() {
            return None;
        }
        DirectHead::of(entry, operation_of(&entry.op)?, cx, segments)
    }

    /// A request that is posted now, if the host may execute it at once: a read or write of one element that is not empty,
    /// with nothing queued or in flight, whose local memory may be used.
    #[inline]
    pub(in crate::engine::qp) fn plan_direct(
        &self,
        cx: &Context<'_>,
        wr: &SendWr<'_>,
    ) -> Option<PlannedDirect> {
        let (operation, remote) = operation_of(&wr.op)?;
        let SendData::Sges([sge]) = wr.data else {
            return None;
        };
        // Read once: a C program's other threads may change it.
        let (iova, len, lkey) = (sge.addr, sge.length, sge.lkey);
        let writes = operation == DirectOperation::Read;
        if self.held
            || matches!(operation, DirectOperation::Atomic(_))
            || !self.queue.is_idle()
            || self.retransmit.is_rnr_waiting()
            || len == 0
            || writes && cx.attr.max_rd_atomic == 0
        {
            return None;
        }
        let checked = cx.memory.check_local(cx.pd, lkey, iova, len, writes);
        let addr = checked.ok()?;
        Some(PlannedDirect {
            operation,
            addr: remote.addr,
            rkey: remote.rkey,
            local: Segment { addr, len },
        })
    }

    /// A request that was not queued is complete. As it takes no number and no PSN, only its completion is left.
    #[inline]
    pub(in crate::engine::qp) fn post_direct(
        &self,
        wr: &SendWr<'_>,
        planned: &PlannedDirect,
        qpn: Qpn,
        out: &mut Outbox,
    ) {
        if self.queue.is_signaled(wr) {
            out.complete_send(success(&wr.op, wr.wr_id, planned.local.len, qpn));
        }
    }

    /// Whether the oldest request is one-sided and no packet of it was sent.
    #[inline]
    pub(in crate::engine::qp) fn is_one_sided_next(&self) -> bool {
        let is_unsent =
            |entry: &&SendEntry| !self.held && entry.first == self.una && self.una == self.frontier;
        let entry = self.queue.front().filter(is_unsent);
        entry.is_some_and(|entry| operation_of(&entry.op).is_some())
    }

    /// The key of the peer's memory if the oldest request is an atomic.
    #[inline]
    pub(in crate::engine::qp) fn next_atomic_key(&self) -> Option<u32> {
        match self.queue.front()?.op {
            SendOp::AtomicCmpSwap { remote, .. } | SendOp::AtomicFetchAdd { remote, .. } => {
                Some(remote.rkey)
            }
            _ => None,
        }
    }

    /// Whether the oldest request is the only one and signaled, and the peer has answered an earlier packet.
    #[inline]
    pub(in crate::engine::qp) fn is_next_awaited(&self) -> bool {
        self.is_answered
            && self.queue.len() == 1
            && self.queue.front().is_some_and(|entry| entry.signaled)
    }

    /// The keys of this side's memory in the oldest request.
    pub(in crate::engine::qp) fn oldest_lkeys(&self) -> impl Iterator<Item = u32> {
        let sges = self.queue.front().into_iter().flat_map(SendEntry::sges);
        sges.map(|sge| sge.lkey)
    }

    /// Whether this side's memory of the oldest request may be used.
    pub(in crate::engine::qp) fn is_oldest_registered(&self, cx: &Context<'_>) -> bool {
        self.queue.front().is_some_and(|entry| {
            let (whole, writes) = (0..u64::from(entry.len), entry.awaits_data());
            segment::check(entry.sges(), whole, cx.pd, cx.memory, writes).is_ok()
        })
    }

    /// The host has carried the oldest request out: it is complete.
    #[inline]
    pub(in crate::engine::qp) fn complete_direct(&mut self, qpn: Qpn, out: &mut Outbox) {
        let Some(entry) = self.queue.front() else {
            return;
        };
        let (first, end) = (entry.first, entry.end);
        // At most 2^23 packets of 256 bytes.
        self.sq_psn = self.sq_psn.sub((end - first) as u32);
        (self.una, self.next, self.frontier) = (end, end, end);
        self.complete_finished(qpn, out);
        self.gather = SgeCursor::default();
        // It runs if the request has found no room before.
        self.retransmit.stop();
    }
}

/// What a request does to the peer's memory, and where. A write with immediate data takes a receive of the peer's.
#[inline]
fn operation_of(op: &SendOp) -> Option<(DirectOperation, RemoteAddr)> {
    match *op {
        SendOp::RdmaWrite(remote) => Some((DirectOperation::Write, remote)),
        SendOp::RdmaRead(remote) => Some((DirectOperation::Read, remote)),
        SendOp::AtomicCmpSwap {
            remote,
            compare,
            swap,
        } => {
            let kind = AtomicKind::CompareSwap { compare, swap };
            Some((DirectOperation::Atomic(kind), remote))
        }
        SendOp::AtomicFetchAdd { remote, add } => Some((
            DirectOperation::Atomic(AtomicKind::FetchAdd { add }),
            remote,
        )),
        _ => None,
    }
}
