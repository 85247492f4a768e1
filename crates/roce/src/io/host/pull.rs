//! Long writes to memory that the peer's program owns, if this process may not write to it: the peer's process copies the
//! bytes out of this process's memory.
//!
//! So the copy is under the target's memory table, like one from a packet, and a deregistration waits for it. A
//! deregistration of this process's memory withdraws the request, and waits for a copy that the target has announced. The
//! request uses no PSN. Until the answer, its queue pair starts no other request. If no answer arrives in time, or the
//! peer refuses, packets are sent instead.

#![allow(unsafe_code, reason = "copies to registered memory")]

use std::sync::Arc;
use std::time::Duration;

use portolan_port_sharing::Block;
use portolan_provider::verbs::QpType;

use crate::engine::{DirectOperation, Payload};
use crate::io::host::Host;
use crate::io::host::direct::CHUNK;
use crate::io::host::pieces;
use crate::io::host::queue_pair::{LockedQp, Pulled, QpCore};
use crate::io::net::shm::peer_memory::PeerMemory;
use crate::io::net::shm::pull::{Answer, Ask, Asker, PULL_PIECES_MAX, Pull, PullKind};
use crate::io::net::shm::rights::StillCopying;
use crate::io::net::transmit::SendSocket;

/// Shorter writes are faster as packets in the ring.
const LEN_MIN: u32 = 16 << 10;
/// Limits of the time that an answer may take: that of an acknowledgement, within these.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(1);

impl Host {
    /// Asks the peer to copy the part of the next request from `done` on, if it is a long write. Returns whether it is
    /// asked.
    pub(super) fn ask_to_pull(
        &self,
        link: &Arc<SendSocket>,
        state: &mut LockedQp,
        done: u32,
    ) -> bool {
        let can_pull = |peer: &&PeerMemory| peer.why_not_pulled().is_none();
        let Some(peer) = link.peer_memory().filter(can_pull) else {
            return false;
        };
        let timeout = timeout_of(state.engine.query().0.timeout);
        let deadline = state.not_before(self.clock.recent()) + timeout;
        let memory = self.memory.read();
        let Some(direct) = state.engine.poll_direct(&memory) else {
            return false;
        };
        let is_long = direct.operation == DirectOperation::Write && direct.len >= LEN_MIN;
        if !is_long || matches!(direct.local, Payload::Inline(_)) {
            return false;
        }
        let len = direct.len;
        let range = done..len.min(done.saturating_add(CHUNK));
        let pieces = pieces::list::<PULL_PIECES_MAX>(&direct.local, range.clone());
        let (rkey, addr) = (direct.rkey, direct.addr.checked_add(done.into()));
        let (Some(addr), Some((pieces, _))) = (addr, pieces) else {
            return false;
        };
        let (Some(mut ring), Some((slot, id))) = (link.open_ring(), peer.begin_pull()) else {
            return false;
        };
        let ask = Ask {
            slot,
            rkey,
            addr,
            len: range.end - range.start,
            // Of at most `CHUNK` bytes.
            pieces: pieces.map(|(addr, len)| (addr, len as u32)),
        };
        let pull = Pull {
            dest_qp: state.peer_qpn,
            tag: state.own_tag,
            id,
            kind: PullKind::Ask(ask),
        };
        if !ring.pull(&pull) {
            peer.end_pull(slot);
            return false;
        }
        ring.publish();
        let lkeys = state.engine.oldest_lkeys().collect();
        state.engine.hold_requests();
        // While the table is locked: a deregistration finds it.
        self.pulling.lock().push(state.engine.qpn());
        drop(memory);
        state.pulled = Some(Pulled {
            id,
            link: Arc::clone(link),
            lkeys,
            slot,
            end: range.end,
            len,
            deadline,
        });
        true
    }

    /// Stops waiting for the peer if the answer is overdue, or if the queue pair or the link has ended. Packets are sent
    /// then.
    pub(super) fn look_at_pull(&self, state: &mut LockedQp) {
        let is_over = |pulled: &Pulled| pulled.deadline <= state.latest;
        let is_closed = state.link.as_ref().is_none_or(|link| link.is_closed());
        if state.pulled.as_ref().is_some_and(is_over) || is_closed || !state.engine.is_sending() {
            self.end_pull(state);
        }
    }

    /// Stops waiting for the peer, which does not begin to copy any more. A deregistration of the memory waits for a copy
    /// that has begun. Returns whether the request is still to be completed.
    pub(crate) fn end_pull(&self, state: &mut LockedQp) -> bool {
        let Some(pulled) = state.pulled.take() else {
            return false;
        };
        // The place shows the request even if the link has ended: what is in the ring may still be read.
        if let Some(peer) = pulled.link.peer_memory_even_if_closed() {
            peer.end_pull(pulled.slot);
        }
        if let Some(links) = &self.links {
            links.rights().note_ended_pull(pulled.id, pulled.lkeys);
        }
        // After the copy is noted: a deregistration finds one of the two.
        let mut pulling = self.pulling.lock();
        if let Some(at) = pulling.iter().position(|qpn| *qpn == state.engine.qpn()) {
            pulling.swap_remove(at);
        }
        drop(pulling);
        state.engine.release_requests()
    }

    /// Ends the requests to peers to copy out of a region that is no longer registered. Packets, which may not use it
    /// either, decide. Waits for the copies that run.
    ///
    /// # Errors
    /// Peers may still be in a copy. Call it again.
    pub(crate) fn end_pulls_of(&self, lkey: u32) -> Result<(), StillCopying> {
        let Some(links) = &self.links else {
            return Ok(());
        };
        let pulling = self.pulling.lock().clone();
        for qp in pulling.into_iter().filter_map(|qpn| self.qps.find(qpn)) {
            let mut state = qp.lock();
            let is_of_it = |pulled: &Pulled| pulled.lkeys.contains(&lkey);
            if !state.pulled.as_ref().is_some_and(is_of_it) {
                continue;
            }
            state.by_packets = self.end_pull(&mut state);
            let now = state.not_before(self.clock.recent());
            self.settle(&qp, &mut state, now);
        }
        links.rights().wait_for_pulls_of(lkey)
    }

    /// Takes a record from another process's ring.
    pub(super) fn take_pull(&self, from: Block, pull: &Pull, asker: &Asker) {
        let Some(qp) = self.qps.find(pull.dest_qp) else {
            return self.monitor.counters.dropped_no_queue_pair.up();
        };
        let mut state = qp.lock();
        if qp.qp_type != QpType::Rc || state.path.is_none() || state.closed {
            return self.monitor.counters.dropped_no_queue_pair.up();
        }
        if state.peer != Some(from) || state.peer_tag != pull.tag {
            return self.monitor.counters.dropped_spoofed.up();
        }
        match &pull.kind {
            PullKind::Ask(ask) => {
                let link = state.link.clone();
                // Without a link, it cannot be answered: the peer sends packets.
                if let Some(link) = link.or_else(|| self.links.as_ref()?.to(from))
                    && let Some(answer) = self.pull(&state, &link, ask, pull.id, asker)
                {
                    answer_pull(&state, &link, pull.id, answer);
                }
            }
            PullKind::Answer(answer) => self.take_answer(&qp, &mut state, pull.id, *answer),
        }
    }

    /// Copies what the peer asks for. `None` if it does not wait any more.
    fn pull(
        &self,
        state: &LockedQp,
        link: &SendSocket,
        ask: &Ask,
        id: u64,
        asker: &Asker,
    ) -> Option<Answer> {
        if self.monitor.tap.is_plugged() {
            return Some(Answer::Refused);
        }
        let memory = self.memory.read();
        let to = state
            .engine
            .pulled_write(&memory, ask.rkey, ask.addr, ask.len);
        let Some(to) = to else {
            return Some(Answer::Refused);
        };
        // A withdrawal of the request comes before the look at it, or waits for the end of the copy.
        let peer = link.peer_memory();
        let Some(_announced) = peer.and_then(|peer| peer.announce_pull(id)) else {
            return Some(Answer::Refused);
        };
        if !asker.waits(ask, id) {
            return None;
        }
        // SAFETY: the engine checked the range against `memory`, and the table has been locked since.
        let copied = unsafe { asker.copy(ask, to) };
        Some(copied.err().unwrap_or(Answer::Done))
    }

    fn take_answer(&self, qp: &QpCore, state: &mut LockedQp, id: u64, answer: Answer) {
        let pulled = state.pulled.as_ref().filter(|pulled| pulled.id == id);
        let Some(&Pulled { end, len, .. }) = pulled else {
            return;
        };
        let is_alive = self.end_pull(state);
        let link = state.link.as_ref().map(Arc::clone);
        let asked_again = match (answer, &link) {
            // Otherwise its memory was deregistered, so the peer may have read something else.
            (Answer::Done, _)
                if is_alive
                    && end == len
                    && state.engine.is_oldest_registered(&self.memory.read()) =>
            {
                state.engine.complete_direct();
                self.monitor.counters.carried_out_in_memory.up();
                true
            }
            (Answer::Done, Some(link)) if is_alive => self.ask_to_pull(link, state, end),
            (Answer::Unreadable(why), Some(link)) => {
                if let Some(peer) = link.peer_memory() {
                    peer.cannot_pull(why);
                }
                false
            }
            _ => false,
        };
        state.by_packets = !asked_again;
        let now = state.not_before(self.clock.recent());
        self.settle(qp, state, now);
    }
}

fn answer_pull(state: &LockedQp, link: &SendSocket, id: u64, answer: Answer) {
    let Some(mut ring) = link.open_ring() else {
        return;
    };
    let pull = Pull {
        dest_qp: state.peer_qpn,
        tag: state.own_tag,
        id,
        kind: PullKind::Answer(answer),
    };
    if ring.pull(&pull) {
        ring.publish();
    }
}

/// How long to wait for an answer with this local ACK timeout.
fn timeout_of(exponent: u8) -> Duration {
    let of_acknowledgement = match exponent {
        0 => TIMEOUT_MAX,
        exponent => Duration::from_nanos(4096 << exponent.min(31)),
    };
    of_acknowledgement.clamp(TIMEOUT_MIN, TIMEOUT_MAX)
}
