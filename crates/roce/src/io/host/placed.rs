//! Writes with immediate data to another process of this host: the sender copies the bytes to the target itself, under
//! the same conditions as other one-sided requests ([`direct`](super::direct)), and then sends a record in the short
//! form, which consumes the receive.
//!
//! Earlier packets must not be executed after the copy. So no packet with data may be unacknowledged, but records may be,
//! of writes to other memory: a record without a receive is not executed either.

#![allow(unsafe_code, reason = "copies to registered memory")]

use std::ops::Range;
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::verbs::{Access, QpType, RemoteAddr, SendOp, SendWr};

use super::direct::{Attempt, CHUNK, chunk_of, copy};
use crate::engine::{Ahead, Compact, Direct, DirectOperation, Payload};
use crate::io::host::Host;
use crate::io::host::memory_access;
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::net::shm::peer_memory::PeerMemory;
use crate::io::net::shm::peer_rights::Wanted;
use crate::io::net::transmit::SendSocket;

/// Bytes of a line of the caches.
const LINE: u64 = 64;

impl Host {
    /// Copies the bytes of the next request, if that is a write with immediate data to memory that this process may
    /// access: from `done` on, and at most `left` bytes. Returns whether all of them are there.
    #[inline]
    pub(super) fn place_write(&self, state: &mut LockedQp, done: u32, left: &mut u32) -> bool {
        if let Some(link) = &state.link
            && state.engine.is_write_next()
        {
            let link = Arc::clone(link);
            if let Some(peer) = link.peer_memory() {
                match self.place_write_at(peer, state, done, left) {
                    Attempt::Done => return true,
                    Attempt::Paused(done) => self.continue_soon(state, done),
                    Attempt::Packets | Attempt::Unwritable => {}
                }
            }
        }
        false
    }

    fn place_write_at(
        &self,
        peer: &PeerMemory,
        state: &mut LockedQp,
        mut done: u32,
        left: &mut u32,
    ) -> Attempt {
        loop {
            let memory = self.memory.read();
            let wanted = wanted_of(state);
            let Some((direct, ahead)) = state.engine.poll_placeable(&memory) else {
                return Attempt::Packets;
            };
            if *left == 0 {
                return Attempt::Paused(done);
            }
            let chunk = chunk_of(&direct, done);
            let Some(at) = self.place(peer, wanted, (&direct, ahead), chunk.clone()) else {
                return Attempt::Packets;
            };
            *left = left.saturating_sub(chunk.end - chunk.start);
            if chunk.end == direct.len {
                state.engine.note_placed(at);
                return Attempt::Done;
            }
            done = chunk.end;
        }
    }

    /// Copies a part of a write that the engine has checked, or whose bytes are borrowed, unless the peer may not have
    /// executed a write to the same memory. Returns the address in this process where the peer's memory has the whole
    /// write's start.
    fn place(
        &self,
        peer: &PeerMemory,
        wanted: Wanted,
        (direct, ahead): (&Direct<'_>, Ahead<'_>),
        chunk: Range<u32>,
    ) -> Option<u64> {
        let wanted = Wanted {
            rkey: direct.rkey,
            addr: direct.addr,
            len: direct.len,
            ..wanted
        };
        let passage = self.enter(peer, &wanted)?;
        if !ahead.leave_free(passage.addr(), direct.len) {
            return None;
        }
        // Before the copy: this locked instruction would wait until the bytes are in memory.
        self.monitor.counters.carried_out_in_memory.up();
        // SAFETY: this side's bytes are borrowed, or the engine checked them against the memory table, which has been
        // locked since. The peer's memory is mapped, and the right is announced while `passage` exists.
        let is_copied = unsafe { copy(passage.addr(), direct, chunk) };
        is_copied.then(|| passage.addr())
    }

    /// Makes the next write wait until it can be placed, if that will be possible.
    pub(super) fn hold_writes(&self, state: &mut LockedQp) {
        let can_place = |(remote, len): (RemoteAddr, u32)| {
            let wanted = Wanted {
                rkey: remote.rkey,
                addr: remote.addr,
                len,
                ..wanted_of(state)
            };
            let peer = state.link.as_ref().and_then(|link| link.peer_memory());
            !self.monitor.tap.is_plugged() && peer.is_some_and(|peer| peer.enter(&wanted).is_ok())
        };
        let holds = state.engine.waiting_write().is_some_and(can_place);
        state.engine.hold_writes(holds);
    }

    /// Copies `bytes` to the peer's memory, and posts a write with immediate data, whose own data are ignored. Returns
    /// false, and posts nothing, if that is not possible now.
    pub(crate) fn post_taken(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        wr: &SendWr<'_>,
        bytes: &[u8],
    ) -> Result<bool> {
        let (SendOp::RdmaWriteWithImm(remote, _), Some(link)) = (wr.op, &state.link) else {
            return Ok(false);
        };
        if bytes.is_empty()
            || bytes.len() > CHUNK as usize
            || qp.qp_type != QpType::Rc
            || self.monitor.tap.is_plugged()
            || !has_room(link)
        {
            return Ok(false);
        }
        let Some(ahead) = state.engine.may_take(&self.memory.read()) else {
            return Ok(false);
        };
        let direct = Direct {
            operation: DirectOperation::Write,
            addr: remote.addr,
            rkey: remote.rkey,
            // At most one chunk.
            len: bytes.len() as u32,
            local: Payload::Inline(bytes),
        };
        let place = |peer| self.place(peer, wanted_of(state), (&direct, ahead), 0..direct.len);
        let Some(at) = link.peer_memory().and_then(place) else {
            return Ok(false);
        };
        state.engine.post_taken(wr, at, direct.len)?;
        self.posted(qp, state);
        // The next one probably goes on from there. The peer has that line, and to get it back takes as long as all the rest.
        let end = at + u64::from(direct.len);
        memory_access::prefetch_to_write(end.next_multiple_of(LINE));
        Ok(true)
    }
}

/// Whether a record can be sent at once. Its bytes are nowhere else, so packets cannot replace it.
fn has_room(link: &SendSocket) -> bool {
    let ring = link.open_ring();
    ring.is_some_and(|mut ring| ring.has_room(Compact::PAYLOAD_MAX as usize))
}

/// What a queue pair needs for a write, without the write's range.
fn wanted_of(state: &LockedQp) -> Wanted {
    Wanted {
        qpn: state.peer_qpn,
        peer: state.engine.qpn(),
        tag: state.peer_tag,
        right: Access::REMOTE_WRITE,
        rkey: 0,
        addr: 0,
        len: 0,
    }
}
