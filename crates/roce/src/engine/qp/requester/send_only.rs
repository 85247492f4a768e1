//! Single-packet sends, for a host that can write a packet directly to the peer.
//!
//! The packet is the one that [`transmit`](Requester::transmit) would build, and the state advances in the same way.
//! `transmit` handles every other case.

use alloc::vec::Vec;

use portolan_provider::verbs::{QpState, SendOp};
use portolan_wire::bth::BthRepr;
use portolan_wire::eth::ImmDtRepr;

use super::{EntryData, Requester};
use crate::engine::Segment;
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::SgeCursor;

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
            EntryData::Inline(_) => Some(self.entry),
            EntryData::Taken => return None,
            EntryData::Sges(_) | EntryData::One(_) => {
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

    /// Whether there is nothing to send until something is posted or arrives.
    #[inline]
    pub(in crate::engine::qp) fn has_sent_all(&self) -> bool {
        self.held || self.entry >= self.queue.len() && !self.retransmit.is_rnr_waiting()
    }
}
