//! Whole sends, writes with immediate data, atomics and acknowledgements through a ring, without packets.
//!
//! The sender writes them in their short form, and the receiver copies a send's bytes from the ring to their place. The
//! bytes of a write are in place before ([`placed`](super::placed)).
//! All other packets go through a batch.

#![allow(unsafe_code, reason = "copies between registered memory and the ring")]

use portolan_port_sharing::Block;
use portolan_provider::verbs::QpType;
use portolan_wire::Qpn;
use portolan_wire::bth::BthRepr;

use crate::engine::{Compact, CompactAck, CompactSend, CompactWords, SendOnly};
use crate::io::host::Host;
use crate::io::host::atomic::{begin_atomic, take_atomic};
use crate::io::host::direct::TURN_MAX;
use crate::io::host::drive::Answer;
use crate::io::host::memory_access;
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::net::read_ring::Handled;
use crate::io::net::shm::peer_memory::PeerMemory;

impl Host {
    /// Sends what has a short form, if the queue pair sends through a ring and no packet waits for room in it. Does
    /// nothing with a tap, which sees packets. Returns whether the queue pair has nothing else to send.
    #[inline]
    pub(super) fn transmit_sends(&self, state: &mut LockedQp) -> bool {
        if self.monitor.tap.is_plugged() {
            return false;
        }
        let mut left = TURN_MAX;
        loop {
            let is_placed = self.place_write(state, 0, &mut left);
            let is_idle = self.write_records(state);
            if is_idle || !is_placed {
                return is_idle;
            }
        }
    }

    #[inline]
    fn write_records(&self, state: &mut LockedQp) -> bool {
        let now = state.latest;
        let LockedQp {
            engine,
            link: Some(link),
            own_tag,
            ..
        } = state
        else {
            return false;
        };
        let takes_records = link.peer_memory().is_some_and(PeerMemory::is_open);
        // Before the ring: others hold the table while they write packets to it.
        let memory = self.memory.read();
        let Some(mut ring) = link.open_ring() else {
            return false;
        };
        while ring.has_room(Compact::PAYLOAD_MAX as usize) {
            let mut compact = Compact {
                tag: *own_tag,
                source_port: link.port(),
                ..Compact::to(Qpn::new(0))
            };
            let mut place = if let Some(send) = engine.poll_send_only(now, &memory) {
                let len = send.payload.len();
                let Some((begun, addr)) = ring.begin(len) else {
                    // There is room, as checked above.
                    break;
                };
                // SAFETY: the engine checked the segments against `memory` in the call above, and the table is locked
                // while the reference to it exists. `begin` reserved this many bytes at `addr`.
                unsafe { memory_access::gather_at(&send.payload, addr) };
                compact.dest_qp = send.bth.dest_qp;
                compact.send = Some(send_of(&send, len));
                Some(begun)
            } else if takes_records && let Some((dest_qp, write)) = engine.poll_write(now, &memory)
            {
                (compact.dest_qp, compact.write) = (dest_qp, Some(write));
                ring.begin(0).map(|(place, _)| place)
            } else {
                begin_atomic(&mut ring, engine, (now, &memory), &mut compact)
            };
            let is_answer = compact.atomic_ack.is_some();
            if place.is_some() && !is_answer {
                engine.send_delayed_acknowledgement();
            }
            if !is_answer && let Some((bth, aeth)) = engine.poll_acknowledgement() {
                compact.dest_qp = bth.dest_qp;
                compact.acknowledgement = Some(ack_of(&bth, aeth.msn));
                place = place.or_else(|| ring.begin(0).map(|(place, _)| place));
            }
            let has_others = compact.send.is_some()
                || compact.write.is_some()
                || compact.atomic.is_some()
                || is_answer;
            let is_last = !has_others || engine.is_transmit_idle();
            if let Some(place) = place {
                ring.end(place, &compact);
            }
            if is_last {
                break;
            }
        }
        // Before the table is unlocked: that may be a locked instruction, which waits until the record is in memory.
        ring.publish();
        drop(memory);
        engine.is_transmit_idle()
    }

    /// Counts a record in the short form for no queue pair.
    #[cold]
    pub(super) fn drop_compact(&self, compact: &CompactWords) -> Handled {
        let dropped = &self.monitor.counters.dropped_no_queue_pair;
        dropped.add(compact.traffic().0);
        Handled::Dropped
    }

    /// Takes a record in the short form from another process's ring. `payload` is the address of its bytes in the
    /// ring.
    #[inline(never)]
    pub(super) fn take_compact(
        &self,
        qp: &QpCore,
        from: Block,
        compact: &CompactWords,
        payload: u64,
        answer: Answer,
    ) -> Handled {
        if qp.qp_type != QpType::Rc {
            return self.drop_compact(compact);
        }
        let mut state = qp.lock();
        if state.path.is_none() || state.closed {
            return self.drop_compact(compact);
        }
        if state.peer != Some(from) || state.peer_tag != compact.tag() {
            return self.drop_spoofed(compact);
        }
        // A write has no packets. Its sender has seen no tap.
        let left = match compact.is_write() || !self.monitor.tap.is_plugged() {
            true => self.take_directly(qp, &mut state, compact, payload, answer),
            false => Left::All,
        };
        match left {
            Left::Nothing => Handled::Done,
            left => self.needs_packets(&state, compact, left),
        }
    }

    /// Counts a record in the short form from another process than the peer's.
    #[cold]
    fn drop_spoofed(&self, compact: &CompactWords) -> Handled {
        let dropped = &self.monitor.counters.dropped_spoofed;
        dropped.add(compact.traffic().0);
        Handled::Dropped
    }

    /// Packets of what is left of a record in the short form.
    #[cold]
    fn needs_packets(&self, state: &LockedQp, compact: &CompactWords, left: Left) -> Handled {
        let mut packets = compact.whole();
        if left == Left::Request {
            packets.acknowledgement = None;
        }
        match state.path {
            Some(path) => Handled::NeedsPackets(path, packets),
            None => self.drop_compact(compact),
        }
    }

    #[cold]
    fn report_results(&self, qp: &QpCore, state: &mut LockedQp) {
        if state.engine.has_results() {
            self.report(qp, state);
        }
    }

    /// Returns what the engine needs packets for.
    #[inline]
    fn take_directly(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        compact: &CompactWords,
        payload: u64,
        answer: Answer,
    ) -> Left {
        let now = match answer {
            Answer::Now => self.clock.recent(),
            Answer::AfterTheOwner(now) => now,
        };
        let now = state.not_before(now);
        let memory = self.memory.read();
        // First: a send completes before the peer's answer to it arrives.
        if let Some(acknowledgement) = compact.acknowledgement() {
            let engine = &mut state.engine;
            if !engine.take_acknowledgement(now, &memory, &acknowledgement) {
                return Left::All;
            }
        }
        if let Some(send) = compact.send() {
            let Some(place) = state.engine.take_send(&memory, &send) else {
                self.report_results(qp, state);
                return Left::Request;
            };
            // SAFETY: the engine checked the place against `memory` in the call above, and the table has been locked
            // since. The reader checked that the payload lies in the ring.
            unsafe { memory_access::copy(payload, place.addr, place.len as usize) };
        }
        if let Some(write) = compact.write() {
            state.engine.take_write(now, &memory, &write);
        }
        if compact.is_atomic() && !take_atomic(&mut state.engine, (now, &memory), compact, payload)
        {
            self.report_results(qp, state);
            return Left::Request;
        }
        drop(memory);
        if state.engine.has_results() {
            self.report(qp, state);
        }
        if !state.engine.is_transmit_idle() {
            match answer {
                Answer::Now => self.settle(qp, state, now),
                Answer::AfterTheOwner(_) => self.settle_soon(qp, state, now),
            }
        }
        Left::Nothing
    }
}

/// What is left of a record in the short form, for which the engine needs packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Request,
    All,
}

#[inline]
fn send_of(send: &SendOnly<'_>, len: usize) -> CompactSend {
    CompactSend {
        psn: send.bth.psn,
        immediate: send.immediate.map(|immediate| immediate.0),
        solicited: send.bth.solicited,
        ack_request: send.bth.ack_request,
        // At most one MTU.
        len: len as u32,
    }
}

#[inline]
pub(super) fn ack_of(bth: &BthRepr, msn: u32) -> CompactAck {
    CompactAck { psn: bth.psn, msn }
}
