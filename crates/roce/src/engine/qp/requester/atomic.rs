//! Atomics: one request packet, and one answer with the previous value.

use portolan_provider::verbs::{QpState, SendOp, WcStatus};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AtomicEthRepr, Syndrome};
use portolan_wire::rocev2::Packet;

use super::transmit::{PACKETS_UNDER_WAY_MAX, Part};
use super::{Broken, Requester, SendEntry};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment;
use crate::engine::qp::send_queue::ATOMIC_BYTES;
use crate::engine::{CompactAtomic, CompactAtomicAck, PlacementSource};

impl Requester {
    /// The request of an atomic. It counts as an outstanding read: the peer keeps its result for duplicates (IBTA
    /// 9.4.5), so a retransmission repeats the answer and not the operation.
    pub(super) fn atomic_part(&self, cx: &Context<'_>, entry: &SendEntry) -> Option<Part> {
        if self.sent_read().is_none() {
            let mtu = cx.mtu();
            if self.reads.len() >= usize::from(cx.attr.max_rd_atomic)
                || self.window.room(self.in_flight(mtu), mtu) < u64::from(mtu)
                || self.next - self.una >= PACKETS_UNDER_WAY_MAX
            {
                return None;
            }
        }
        let (opcode, eth) = request_of(&entry.op)?;
        let mut headers = cx.headers(opcode, self.psn(self.next), 0);
        headers.xrceth = entry.xrceth;
        headers.atomic_eth = Some(eth);
        headers.bth.ack_request = true;
        Some(Part {
            headers,
            payload_len: 0,
            packets: 1,
        })
    }

    /// The next request, if it is an atomic that was not sent before and may be sent now. It counts as sent.
    pub(in crate::engine::qp) fn atomic_record(
        &mut self,
        cx: &Context<'_>,
        out: &mut Outbox,
    ) -> Option<(CompactAtomic, AtomicEthRepr)> {
        let entry = self.queue.get(self.entry)?;
        let is_fresh = self.next == self.frontier && !self.retransmit.is_rnr_waiting();
        if !entry.is_atomic()
            || self.held
            || !is_fresh
            || cx.attr.state != QpState::Rts
            || entry.xrceth.is_some()
            || self.is_fenced(entry)
        {
            return None;
        }
        let part = self.atomic_part(cx, entry)?;
        let (opcode, operands) = request_of(&entry.op)?;
        let whole = 0..u64::from(entry.len);
        segment::check(entry.sges(), whole, cx.pd, cx.memory, true).ok()?;
        self.advance(cx, part.packets, true, out);
        let atomic = CompactAtomic {
            psn: part.headers.bth.psn,
            compares: opcode == Opcode::RcCompareSwap,
        };
        Some((atomic, operands))
    }

    /// Handles the answer to an atomic that came without a packet.
    pub(in crate::engine::qp) fn take_atomic_ack(
        &mut self,
        cx: &Context<'_>,
        answer: &CompactAtomicAck,
        original: u64,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        match self.number_of(answer.psn) {
            Ok(number) => self.on_original(cx, number, Some(original), out),
            Err(reason) => {
                out.counters.count_drop(reason);
                Ok(())
            }
        }
    }

    /// Handles the answer to an atomic, which also acknowledges earlier requests.
    pub(super) fn on_atomic_answer(
        &mut self,
        cx: &Context<'_>,
        number: u64,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let is_ack = matches!(
            packet.aeth().map(|aeth| aeth.syndrome),
            Some(Syndrome::Ack { .. })
        );
        let answer = packet.atomic_ack().filter(|_| is_ack);
        let original = answer.map(|answer| answer.original);
        self.on_original(cx, number, original, out)
    }

    /// Handles an answer with the previous value. `None` is an answer that is wrong.
    fn on_original(
        &mut self,
        cx: &Context<'_>,
        number: u64,
        original: Option<u64>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        if !self.acknowledge_to(cx, number, out) {
            self.repair_gap(out);
            return Ok(());
        }
        let is_its_answer = self.reads.oldest().is_some_and(|read| read.first == number);
        let entry = self.queue.front().filter(|entry| entry.is_atomic());
        let (true, Some(entry), Some(original)) = (is_its_answer, entry, original) else {
            return Err(self.fail(number, WcStatus::BadRespErr, cx.qpn, out));
        };
        let source = PlacementSource::Value(original.to_ne_bytes());
        let len = ATOMIC_BYTES as usize;
        let placed = self.scatter.scatter(entry.sges(), 0, source, len, cx, out);
        if placed.is_err() {
            return Err(self.fail(number, WcStatus::LocProtErr, cx.qpn, out));
        }
        self.progress_to(cx, number + 1, out);
        Ok(())
    }
}

fn request_of(op: &SendOp) -> Option<(Opcode, AtomicEthRepr)> {
    let (opcode, remote, swap_or_add, compare) = match *op {
        SendOp::AtomicCmpSwap {
            remote,
            compare,
            swap,
        } => (Opcode::RcCompareSwap, remote, swap, compare),
        SendOp::AtomicFetchAdd { remote, add } => (Opcode::RcFetchAdd, remote, add, 0),
        _ => return None,
    };
    let eth = AtomicEthRepr {
        va: remote.addr,
        rkey: remote.rkey,
        swap_or_add,
        compare,
    };
    Some((opcode, eth))
}
