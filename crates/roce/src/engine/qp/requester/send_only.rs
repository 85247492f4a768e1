//! Single-packet sends, for a host that can write a packet directly to the peer.
//!
//! The packet is the one that [`transmit`](Requester::transmit) would build, and the state advances in the same way.
//! `transmit` handles every other case.

use alloc::vec::Vec;
use core::time::Duration;

use portolan_provider::verbs::{QpState, SendData, SendFlags, SendOp, SendWr, Sge};
use portolan_wire::bth::BthRepr;
use portolan_wire::eth::ImmDtRepr;

use super::{EntryData, Requester};
use crate::engine::qp::STREAM_UNDER_WAY_MIN;
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{CompactSend, PlannedBytes, PlannedSend, Segment};

/// A packet without its payload, so that it borrows nothing.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::qp) struct SendOnlyHead {
    pub(in crate::engine::qp) bth: BthRepr,
    pub(in crate::engine::qp) immediate: Option<ImmDtRepr>,
    /// The entry that contains the payload, if the payload is inline.
    pub(in crate::engine::qp) inline: Option<usize>,
}

impl Requester {
    /// The next request, if it is a send of one packet that may be sent immediately. Fills `segments` with the memory
    /// of its payload, unless that is inline.
    #[inline]
    pub(in crate::engine::qp) fn send_only(
        &mut self,
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Option<SendOnlyHead> {
        let entry = self.queue.get(self.entry)?;
        let is_send = matches!(entry.op, SendOp::Send | SendOp::SendWithImm(_));
        let is_next = entry.first == self.next && entry.end == self.next + 1;
        let is_fresh = self.next == self.frontier && !self.retransmit.is_rnr_waiting();
        if self.held
            || !is_send
            || !is_next
            || !is_fresh
            || cx.attr.state != QpState::Rts
            || entry.xrceth.is_some()
        {
            return None;
        }
        if self.is_fenced(entry) {
            return None;
        }
        let base = self.message_base(cx, entry)?;
        let inline = match &entry.data {
            EntryData::Inline => Some(self.entry),
            EntryData::Taken => return None,
            EntryData::Sges | EntryData::One(_) => {
                let (memory, whole) = ((cx.memory, false), 0..u64::from(entry.len));
                let mut cursor = SgeCursor::default();
                let gathered = cursor.gather(entry.sges(), whole, cx.pd, memory, segments);
                gathered.ok()?;
                None
            }
        };
        self.advance(cx, 1, base.bth.ack_request, out);
        Some(SendOnlyHead {
            bth: base.bth,
            immediate: base.immediate,
            inline,
        })
    }

    /// Whether a request that is posted now is a send of one packet that may be sent immediately: nothing is unsent before
    /// it, and few packets are in flight.
    #[inline(always)]
    pub(in crate::engine::qp) fn may_post_send_only(&self, wr: &SendWr<'_>, mtu: u32) -> bool {
        self.entry == self.queue.len()
            && self.next == self.queue.end()
            && self.under_way() < STREAM_UNDER_WAY_MIN
            && self.window.room(self.in_flight(mtu), mtu) >= u64::from(mtu)
            && !self.held
            && !self.retransmit.is_rnr_waiting()
            && self.queue.takes_send_only(wr, mtu)
    }

    /// The packet of a request that [`may_post_send_only`](Self::may_post_send_only) has accepted. `None` if the memory may
    /// not be used.
    #[inline(always)]
    pub(in crate::engine::qp) fn plan_send_only<'a>(
        &self,
        cx: &Context<'_>,
        wr: &SendWr<'a>,
    ) -> Option<PlannedSend<'a>> {
        let (bytes, len, sge) = match wr.data {
            SendData::Sges([Sge { addr, length, lkey }]) => {
                // One by one, as the program has just written them: a wide load would wait for all.
                let (addr, len, lkey) = (*addr, *length, *lkey);
                // A C program's other threads may have changed it.
                if len > cx.mtu() {
                    return None;
                }
                let sge = Sge {
                    addr,
                    length: len,
                    lkey,
                };
                let checked = cx.memory.check_local(cx.pd, lkey, addr, len, false);
                let addr = checked.ok()?;
                (PlannedBytes::Memory(Segment { addr, len }), len, Some(sge))
            }
            SendData::Sges(_) => return None,
            // At most one MTU.
            SendData::Inline(bytes) => (PlannedBytes::Inline(bytes), bytes.len() as u32, None),
        };
        let send = CompactSend {
            psn: self.psn(self.next),
            immediate: match wr.op {
                SendOp::SendWithImm(immediate) => Some(immediate.to_ne_bytes()),
                _ => None,
            },
            solicited: wr.flags.contains(SendFlags::SOLICITED),
            // It is the last request that is posted.
            ack_request: true,
            len,
        };
        Some(PlannedSend {
            dest_qp: cx.attr.dest_qpn,
            send,
            bytes,
            sge,
        })
    }

    /// Posts a request whose packet was sent as planned.
    #[inline(always)]
    pub(in crate::engine::qp) fn post_send_only(
        &mut self,
        now: Duration,
        wr: &SendWr<'_>,
        planned: &PlannedSend<'_>,
        out: &mut Outbox,
    ) {
        self.queue.push_send_only(wr, planned.send.len, planned.sge);
        self.entry += 1;
        let end = self.next + 1;
        self.packets_until = end;
        self.note_sent(now, end, true, out);
    }

    /// Whether there is nothing to send until something is posted or arrives.
    #[inline]
    pub(in crate::engine::qp) fn has_sent_all(&self) -> bool {
        self.held || self.entry >= self.queue.len() && !self.retransmit.is_rnr_waiting()
    }
}
