//! Atomics that need no packet: their requests and answers have a short form.

use core::time::Duration;

use portolan_provider::verbs::{QpState, QpType};
use portolan_wire::Qpn;
use portolan_wire::eth::AtomicEthRepr;

use super::QueuePair;
use super::context::Context;
use crate::engine::{CompactAtomic, CompactAtomicAck, MemoryTable};

impl QueuePair {
    /// The receiver, and the next request of an RC queue pair, if that is an atomic that was not sent before.
    ///
    /// [`poll_transmit`](Self::poll_transmit) would return the same as a packet, except that it returns responses first.
    /// After `None`, it may still return a packet.
    pub fn poll_atomic_request(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
    ) -> Option<(Qpn, CompactAtomic, AtomicEthRepr)> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let halves = self.service.reliable_mut()?;
        if !halves.responder.only_acknowledges() {
            return None;
        }
        let requester = &mut halves.requester;
        let (atomic, operands) = requester.atomic_record(&cx, &mut self.outbox)?;
        self.outbox.counters.packets_sent += 1;
        Some((self.attr.dest_qpn, atomic, operands))
    }

    /// The receiver, and the next response of an RC queue pair, if that is the answer to an atomic, with the value that was
    /// in memory before.
    pub fn poll_atomic_ack(&mut self) -> Option<(Qpn, CompactAtomicAck, u64)> {
        if self.qp_type() != QpType::Rc {
            return None;
        }
        let responder = &mut self.service.reliable_mut()?.responder;
        let (answer, original) = responder.next_atomic_ack()?;
        self.outbox.counters.packets_sent += 1;
        Some((self.attr.dest_qpn, answer, original))
    }

    /// Takes an atomic of the peer without a packet, if the queue pair is an RC one that receives, the atomic is next, and
    /// the peer has the right. [`poll_atomic`](Self::poll_atomic) then returns the operation.
    ///
    /// `false` changes nothing: the host then calls [`handle_packet`](Self::handle_packet) with the packet.
    pub fn take_atomic(
        &mut self,
        memory: &MemoryTable,
        atomic: &CompactAtomic,
        operands: &AtomicEthRepr,
    ) -> bool {
        use QpState::{Rtr, Rts, Sqd, Sqe};
        if self.qp_type() != QpType::Rc || !matches!(self.attr.state, Rtr | Rts | Sqd | Sqe) {
            return false;
        }
        let cx = Context::new(&self.config, &self.attr, Duration::ZERO, memory);
        let Some(halves) = self.service.reliable_mut() else {
            return false;
        };
        if !halves.responder.take_atomic(&cx, atomic, operands) {
            return false;
        }
        self.outbox.counters.packets_received += 1;
        self.hear_peer();
        true
    }

    /// Takes the answer to an atomic without a packet, if the queue pair is an RC one in RTS or SQD. `original` is the value
    /// that was in memory before. [`poll_placement`](Self::poll_placement) then returns where it is to be stored.
    ///
    /// `false` changes nothing: the host then calls [`handle_packet`](Self::handle_packet) with the packet.
    pub fn take_atomic_ack(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        answer: &CompactAtomicAck,
        original: u64,
    ) -> bool {
        if self.qp_type() != QpType::Rc || !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        let cx = Context::new(&self.config, &self.attr, now, memory);
        let Some(halves) = self.service.reliable_mut() else {
            return false;
        };
        self.outbox.counters.packets_received += 1;
        let requester = &mut halves.requester;
        let result = requester.take_atomic_ack(&cx, answer, original, &mut self.outbox);
        if let Err(broken) = result {
            halves.broken(broken);
            self.enter_error();
        }
        self.note_drained();
        true
    }
}
