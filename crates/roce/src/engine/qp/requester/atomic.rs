//! Atomics: one request packet, and one answer with the previous value.

use portolan_provider::verbs::{SendOp, WcStatus};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AtomicEthRepr, Syndrome};
use portolan_wire::rocev2::Packet;

use super::transmit::{PACKETS_UNDER_WAY_MAX, Part};
use super::{Broken, Requester, SendEntry};
use crate::engine::PlacementSource;
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::send_queue::ATOMIC_BYTES;

impl Requester {
    /// The request of an atomic. It counts as an outstanding read: the peer keeps its result for duplicates (IBTA
    /// 9.4.5), so a retransmission repeats the answer and not the operation.
    pub(super) fn atomic_part(&self, cx: &Context<'_>, entry: &SendEntry) -> Option<Part> {
        if self.reads.containing(self.next).is_none() {
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

    /// Handles the answer to an atomic, which also acknowledges earlier requests.
    pub(super) fn on_atomic_answer(
        &mut self,
        cx: &Context<'_>,
        number: u64,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        if !self.acknowledge_to(cx, number, out) {
            self.repair_gap(out);
            return Ok(());
        }
        let is_its_answer = self.reads.oldest().is_some_and(|read| read.first == number);
        let is_ack = matches!(
            packet.aeth().map(|aeth| aeth.syndrome),
            Some(Syndrome::Ack { .. })
        );
        let entry = self.queue.front().filter(|entry| entry.is_atomic());
        let (true, true, Some(entry), Some(answer)) =
            (is_its_answer, is_ack, entry, packet.atomic_ack())
        else {
            return Err(self.fail(number, WcStatus::BadRespErr, cx.qpn, out));
        };
        let source = PlacementSource::Value(answer.original.to_ne_bytes());
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
