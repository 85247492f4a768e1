//! Cheaper ways to ask for common packets than [`QueuePair::poll_transmit`].

use core::time::Duration;

use portolan_provider::verbs::{QpState, QpType, SendWr};
use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::eth::AethRepr;

use super::QueuePair;
use super::context::{Context, base_header};
use super::reliable::Reliable;
use crate::engine::{
    CompactAck, CompactSend, MemoryTable, Payload, PlannedSend, Segment, SendOnly,
};

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

    /// Whether [`post_send_only`](Self::post_send_only) may post a request: a whole send with a payload, in one piece, of
    /// an RC queue pair in RTS that has nothing else to send, except an acknowledgement.
    #[inline(always)]
    pub fn may_post_send_only(&self, wr: &SendWr<'_>) -> bool {
        let Some(halves) = self.service.reliable() else {
            return false;
        };
        let mtu = self.attr.path_mtu.bytes() as u32;
        self.attr.state == QpState::Rts
            && self.qp_type() == QpType::Rc
            && halves.responder.has_only_acknowledgement()
            && halves.requester.may_post_send_only(wr, mtu)
    }

    /// The packet of a request that [`may_post_send_only`](Self::may_post_send_only) permits, which
    /// [`post_send_only`](Self::post_send_only) then posts, with no other call between but those for an acknowledgement.
    ///
    /// The host sends the packet between the two: the peer need not wait until the request is noted here. But inline data
    /// are noted before: the program may change them when the peer answers.
    ///
    /// Changes nothing. `None` if the memory may not be used, which [`post_send`](Self::post_send) handles.
    #[inline(always)]
    pub fn plan_send_only<'a>(
        &self,
        memory: &MemoryTable,
        wr: &SendWr<'a>,
    ) -> Option<PlannedSend<'a>> {
        debug_assert!(self.may_post_send_only(wr), "it is another request's turn");
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        self.service.reliable()?.requester.plan_send_only(&cx, wr)
    }

    /// Posts a request and counts it as sent. The queue pair is idle afterwards, except for an acknowledgement.
    ///
    /// The queue pair is as after [`post_send`](Self::post_send) and [`poll_send_only`](Self::poll_send_only), at a fraction
    /// of their cost.
    #[inline(always)]
    pub fn post_send_only(&mut self, now: Duration, wr: &SendWr<'_>, planned: &PlannedSend<'_>) {
        let Some(halves) = self.service.reliable_mut() else {
            return;
        };
        let requester = &mut halves.requester;
        requester.post_send_only(now, wr, planned, &mut self.outbox);
        let counters = &mut self.outbox.counters;
        counters.packets_sent += 1;
        counters.bytes_sent += u64::from(planned.send.len);
    }

    /// The headers of an RC queue pair's pending acknowledgement, if it is positive and the only pending response.
    ///
    /// [`poll_transmit`](Self::poll_transmit) would return the same packet at a higher cost.
    #[inline(always)]
    pub fn poll_acknowledgement(&mut self) -> Option<(BthRepr, AethRepr)> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let responder = &mut self.service.reliable_mut()?.responder;
        let (psn, aeth) = responder.lone_acknowledgement()?;
        self.outbox.counters.packets_sent += 1;
        Some((base_header(&self.attr, Opcode::RcAck, psn, 0), aeth))
    }

    /// Takes a send of the peer without a packet, if the queue pair is an RC one in RTS, the send is next, and the
    /// first element of the oldest receive has room for it. The host copies the bytes to the returned memory before
    /// any other call.
    ///
    /// `None` changes nothing: the host then calls [`handle_packet`](Self::handle_packet) with the packet.
    #[inline]
    pub fn take_send(&mut self, memory: &MemoryTable, send: &CompactSend) -> Option<Segment> {
        if self.qp_type() != QpType::Rc || self.attr.state != QpState::Rts {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let responder = &mut self.service.reliable_mut()?.responder;
        let segment = responder.take_send(&cx, send, &mut self.outbox)?;
        let counters = &mut self.outbox.counters;
        counters.packets_received += 1;
        counters.bytes_received += u64::from(send.len);
        Some(segment)
    }

    /// Takes a positive acknowledgement without a packet, if the queue pair is an RC one in RTS or SQD.
    ///
    /// `false` changes nothing: the host then calls [`handle_packet`](Self::handle_packet) with the packet.
    #[inline]
    pub fn take_acknowledgement(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        acknowledgement: &CompactAck,
    ) -> bool {
        if self.qp_type() != QpType::Rc || !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let Some(halves) = self.service.reliable_mut() else {
            return false;
        };
        let requester = &mut halves.requester;
        requester.take_acknowledgement(&cx, acknowledgement.psn, &mut self.outbox);
        self.outbox.counters.packets_received += 1;
        self.note_drained();
        true
    }

    /// Removes all [`completions`](Self::completions).
    #[inline]
    pub fn clear_completions(&mut self) {
        self.outbox.completions.clear();
    }

    /// Whether there are completions or events to take.
    #[inline]
    pub fn has_results(&self) -> bool {
        !self.outbox.completions.is_empty() || self.has_events()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has nothing to do until something is posted or arrives. It may
    /// have nothing to do even if this is false.
    #[inline]
    pub fn is_transmit_idle(&self) -> bool {
        let is_idle = |halves: &Reliable| {
            halves.responder.has_answered_all() && halves.requester.has_sent_all()
        };
        let sends = matches!(self.attr.state, QpState::Rtr | QpState::Rts);
        sends && self.service.reliable().is_some_and(is_idle)
    }
}
