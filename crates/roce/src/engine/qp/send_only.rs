//! Cheaper ways to ask for common packets than [`QueuePair::poll_transmit`].

use core::time::Duration;

use portolan_provider::verbs::{QpState, QpType};
use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::eth::AethRepr;

use super::QueuePair;
use super::context::{Context, base_header};
use super::reliable::Reliable;
use crate::engine::{MemoryTable, Payload, SendOnly};

impl QueuePair {
    /// The next packet of an RC queue pair, if it contains a whole send, with or without immediate data, and is not a
    /// retransmission.
    ///
    /// [`poll_transmit`](Self::poll_transmit) would return the same packet, except that it returns acknowledgements
    /// first. Asking here first costs less. After `None`, `poll_transmit` may still return a packet.
    #[inline]
    pub fn poll_send_only(&mut self, now: Duration, memory: &MemoryTable) -> Option<SendOnly<'_>> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let halves = self.service.reliable_mut()?;
        if !halves.responder.only_acknowledges() {
            return None;
        }
        let (segments, out) = (&mut self.segments, &mut self.outbox);
        let head = halves.requester.send_only(&cx, segments, out)?;
        let payload = match head.inline {
            Some(entry) => Payload::Inline(halves.requester.inline_bytes(entry)),
            None => Payload::Segments(&self.segments),
        };
        let counters = &mut self.outbox.counters;
        counters.packets_sent += 1;
        counters.bytes_sent += payload.len() as u64;
        Some(SendOnly {
            bth: head.bth,
            immediate: head.immediate,
            payload,
        })
    }

    /// The headers of an RC queue pair's pending acknowledgement, if it is positive and the only pending response.
    ///
    /// [`poll_transmit`](Self::poll_transmit) would return the same packet at a higher cost.
    #[inline]
    pub fn poll_acknowledgement(&mut self) -> Option<(BthRepr, AethRepr)> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let responder = &mut self.service.reliable_mut()?.responder;
        let (psn, aeth) = responder.lone_acknowledgement()?;
        self.outbox.counters.packets_sent += 1;
        Some((base_header(&self.attr, Opcode::RcAck, psn, 0), aeth))
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has nothing to do until something is posted or arrives. It may
    /// have nothing to do even if this is false.
    #[inline]
    pub fn is_transmit_idle(&self) -> bool {
        let is_idle = |halves: &Reliable| {
            halves.responder.has_answered_all() && halves.requester.has_sent_all()
        };
        self.attr.state == QpState::Rts && self.service.reliable().is_some_and(is_idle)
    }
}
