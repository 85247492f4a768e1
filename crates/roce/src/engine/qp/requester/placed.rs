//! Writes with immediate data whose bytes the host copies to the peer's memory itself. A short record follows instead of
//! packets.
//!
//! A record uses the PSNs of the packets that it stands for. If it was not executed, it is sent again, because its bytes
//! are still in place; or the packets are sent in its place, unless the bytes are only there.

use alloc::vec::Vec;

use portolan_provider::Result;
use portolan_provider::verbs::{QpState, RemoteAddr, SendOp, SendWr};

use super::direct::DirectHead;
use super::transmit::PACKETS_UNDER_WAY_MAX;
use super::{EntryData, Requester, SendEntry};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::{CompactWrite, DirectOperation, Segment};

impl Requester {
    /// The next request, if it is a write with immediate data that the host may place itself. Fills `segments` with its
    /// bytes, unless they are inline.
    pub(in crate::engine::qp) fn placeable(
        &self,
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
    ) -> Option<DirectHead> {
        let entry = self.queue.get(self.entry)?;
        let SendOp::RdmaWriteWithImm(remote, _) = entry.op else {
            return None;
        };
        let is_fresh = entry.first == self.next && !entry.has_record() && !self.is_fenced(entry);
        if !is_fresh || !self.may_place(cx) || entry.xrceth.is_some() {
            return None;
        }
        DirectHead::of(entry, (DirectOperation::Write, remote), cx, segments)
    }

    /// Whether a copy made now is in order: no packet that has data is unacknowledged, and nothing must be sent again.
    fn may_place(&self, cx: &Context<'_>) -> bool {
        cx.attr.state == QpState::Rts
            && self.next == self.frontier
            && self.una >= self.packets_until
            && !self.retransmit.is_rnr_waiting()
    }

    /// Whether the next request is a write with immediate data.
    #[inline]
    pub(in crate::engine::qp) fn is_write_next(&self) -> bool {
        let entry = self.queue.get(self.entry).filter(|_| !self.held);
        entry.is_some_and(|entry| matches!(entry.op, SendOp::RdmaWriteWithImm(..)))
    }

    /// The memory of the next request and its length, if it is a write with immediate data that could be placed, except
    /// that packets of the write before it are unacknowledged. Without a wait, a stream of writes that once needs packets
    /// would need them for as long as it lasts.
    pub(in crate::engine::qp) fn waiting_write(&self) -> Option<(RemoteAddr, u32)> {
        let remote_of = |entry: &SendEntry| match entry.op {
            SendOp::RdmaWriteWithImm(remote, _) if !entry.has_record() => Some(remote),
            _ => None,
        };
        let entry = self.queue.get(self.entry)?;
        let before = self.queue.get(self.entry.checked_sub(1)?)?;
        let waits = entry.first == self.next
            && self.next == self.frontier
            && self.has_packets_under_way()
            && self.since_ack_request == 0
            && remote_of(before).is_some();
        Some((remote_of(entry).filter(|_| waits)?, entry.len))
    }

    pub(in crate::engine::qp) fn hold_writes(&mut self, holds: bool) {
        self.holds_writes = holds;
    }

    /// The index of the next request, counted from the oldest.
    pub(in crate::engine::qp) fn index(&self) -> usize {
        self.entry
    }

    /// The bytes of the next request are in the peer's memory, at `at` in this process.
    pub(in crate::engine::qp) fn note_placed(&mut self, at: u64) {
        if let Some(entry) = self.queue.get_mut(self.entry) {
            entry.placed_at = Some(at);
            self.placed.add(self.una, entry.end, (at, entry.len));
        }
    }

    /// Whether no write whose record is unacknowledged has placed bytes in these `len` bytes.
    pub(in crate::engine::qp) fn is_free(&self, at: u64, len: u32) -> bool {
        // The oldest request tells how much of the oldest run is acknowledged.
        let oldest = self.queue.front().and_then(|entry| entry.placed_at);
        self.placed.is_free(self.una, oldest, (at, len))
    }

    /// Whether the next request to be posted may be placed at once.
    pub(in crate::engine::qp) fn may_take(&self, cx: &Context<'_>) -> bool {
        self.may_place(cx) && self.next == self.queue.end() && self.entry == self.queue.len()
    }

    /// Posts a write with immediate data whose bytes are only in the peer's memory, at an address in this process.
    pub(in crate::engine::qp) fn post_taken(
        &mut self,
        wr: &SendWr<'_>,
        place: (u64, u32),
        mtu: u32,
    ) -> Result<()> {
        self.queue.push_taken(wr, place, mtu)?;
        self.placed.add(self.una, self.queue.end(), place);
        Ok(())
    }

    /// The record of the next request, if it is a write that has one.
    pub(in crate::engine::qp) fn write_record(
        &mut self,
        cx: &Context<'_>,
        out: &mut Outbox,
    ) -> Option<CompactWrite> {
        self.retransmit.end_rnr_wait(cx.now);
        let entry = self.queue.get(self.entry)?;
        let SendOp::RdmaWriteWithImm(_, immediate) = entry.op else {
            return None;
        };
        let may_send = cx.attr.state == QpState::Rts
            && entry.end - self.una <= PACKETS_UNDER_WAY_MAX
            && !self.retransmit.is_rnr_waiting();
        if !may_send || !entry.has_record() || entry.xrceth.is_some() || self.is_fenced(entry) {
            return None;
        }
        let write = CompactWrite {
            psn: self.psn(entry.first),
            immediate: immediate.to_ne_bytes(),
            solicited: entry.solicited,
            // The owner of a taken request needs its completion only for room.
            ack_request: !matches!(entry.data, EntryData::Taken) || self.next < self.frontier,
            len: entry.len,
        };
        self.advance(cx, entry.end - self.next, true, out);
        Some(write)
    }

    /// Packets replace the records of the next requests. Returns false if the bytes of the next one are only in the
    /// peer's memory: its record must be sent again, and until then the timer runs.
    pub(super) fn give_up_records(&mut self, cx: &Context<'_>) -> bool {
        let Some(entry) = self
            .queue
            .get(self.entry)
            .filter(|entry| entry.placed_at.is_some())
        else {
            return true;
        };
        if matches!(entry.data, EntryData::Taken) {
            self.wait_for_room(cx.attr.state, cx.now);
            return false;
        }
        // These packets may write over what later requests have placed.
        for index in self.entry..self.queue.len() {
            if let Some(entry) = self.queue.get_mut(index)
                && !matches!(entry.data, EntryData::Taken)
            {
                entry.placed_at = None;
            }
        }
        true
    }
}

impl SendEntry {
    /// Whether a record suffices: it is a write with immediate data that has no bytes, or whose bytes are placed.
    pub(in crate::engine::qp) fn has_record(&self) -> bool {
        let is_write = matches!(self.op, SendOp::RdmaWriteWithImm(..));
        is_write && (self.placed_at.is_some() || self.len == 0)
    }
}
