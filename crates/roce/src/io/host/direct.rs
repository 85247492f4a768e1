//! Executes one-sided requests in the memory of another process of this host, without that process.
//!
//! This needs two things: nothing of the queue pair is unacknowledged, and the other process's table of rights allows
//! the request ([`rights`](crate::io::net::shm::rights)). Everything else is sent, so the peer itself decides on
//! a refusal. While either process has a tap, all requests use packets, because a tap must see all traffic.

#![allow(unsafe_code, reason = "copies between registered memory")]

use std::ops::Range;
use std::sync::Arc;

use portolan_provider::verbs::{Access, QpState, QpType};
use portolan_wire::Qpn;

use crate::engine::{AtomicOperation, Direct, DirectOperation, QueuePair, Region};
use crate::io::host::Host;
use crate::io::host::long_copy::LONG_MIN;
use crate::io::host::memory_access;
use crate::io::host::pieces::for_each_piece;
use crate::io::host::program_memory;
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::net::shm::memory_files::SharedPages;
use crate::io::net::shm::peer_memory::{NoPassage, Passage, PeerMemory};
use crate::io::net::shm::peer_rights::Wanted;
use crate::io::net::shm::rights::{KeyRight, QpRight};
use crate::io::net::shm::rights_layout::{Slot, tag_of};
use crate::io::net::tap::Tap;

/// Bytes copied under one announcement. A withdrawal waits for at most this much.
pub(super) const CHUNK: u32 = 1 << 20;
/// Bytes copied in one turn under the queue pair's lock. What follows is copied in later turns ([`copying`](super::copying)).
pub(super) const TURN_MAX: u32 = 16 << 20;

/// How an attempt to execute a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Done,
    /// The turn is over after this many bytes of the request.
    Paused(u32),
    /// The request needs packets. They transfer the whole request.
    Packets,
    /// It needs packets, unless the peer copies it.
    Unwritable,
}

impl Host {
    /// Executes the next requests in the peer's memory, until one needs packets or the turn is over.
    #[inline]
    pub(super) fn go_direct(&self, qp: &QpCore, state: &mut LockedQp) {
        self.go_direct_from(qp, state, 0, TURN_MAX);
    }

    /// As [`go_direct`](Self::go_direct), in a turn of `left` bytes. The first `done` bytes of the next request are copied
    /// already.
    #[inline]
    pub(super) fn go_direct_from(&self, qp: &QpCore, state: &mut LockedQp, done: u32, left: u32) {
        if state.pulled.is_some() {
            return self.look_at_pull(state);
        }
        if std::mem::take(&mut state.by_packets) {
            return;
        }
        if let Some(link) = &state.link
            && let Some(peer) = link.peer_memory()
            && qp.qp_type == QpType::Rc
            && state.engine.is_one_sided_next()
            && !self.monitor.tap.is_plugged()
        {
            let atomic_key = state.engine.next_atomic_key();
            if atomic_key.is_some_and(|key| peer.is_of_program(key)) {
                return;
            }
            self.go_direct_to_peer(qp, state, done, left);
        }
    }

    fn go_direct_to_peer(&self, qp: &QpCore, state: &mut LockedQp, mut done: u32, mut left: u32) {
        loop {
            let LockedQp {
                engine,
                link: Some(link),
                peer_qpn,
                peer_tag,
                ..
            } = state
            else {
                return;
            };
            let Some(peer) = link.peer_memory() else {
                return;
            };
            let ends = (*peer_qpn, *peer_tag);
            match self.carry_out(qp, peer, engine, ends, done, &mut left) {
                Attempt::Done => {
                    engine.complete_direct();
                    self.monitor.counters.carried_out_in_memory.up();
                    if !engine.is_one_sided_next() {
                        return;
                    }
                    done = 0;
                }
                Attempt::Paused(done) => return self.continue_soon(state, done),
                attempt => {
                    if attempt == Attempt::Unwritable {
                        let link = Arc::clone(link);
                        self.ask_to_pull(&link, state, 0);
                    }
                    // What refused a later part refuses it again. Without this, the copy would start from the beginning.
                    state.by_packets = done > 0 && state.pulled.is_none();
                    return;
                }
            }
        }
    }

    /// Executes the next request in chunks, from `done` on.
    #[inline]
    fn carry_out(
        &self,
        qp: &QpCore,
        peer: &PeerMemory,
        engine: &mut QueuePair,
        (qpn, tag): (Qpn, u32),
        mut done: u32,
        left: &mut u32,
    ) -> Attempt {
        let own = engine.qpn();
        let is_awaited = engine.is_next_awaited();
        loop {
            let memory = self.memory.read();
            let Some(direct) = engine.poll_direct(&memory) else {
                return Attempt::Packets;
            };
            if *left == 0 {
                return Attempt::Paused(done);
            }
            let wanted = Wanted {
                qpn,
                peer: own,
                tag,
                right: right_of(direct.operation),
                rkey: direct.rkey,
                addr: direct.addr,
                len: direct.len,
            };
            let chunk = chunk_of(&direct, done);
            match peer.enter(&wanted) {
                Ok(passage) => {
                    // SAFETY: the engine checked this side's memory against the table, which has been locked since. The
                    // peer's memory is mapped, and the right is announced while `passage` exists.
                    if !unsafe { copy(passage.addr(), &direct, chunk.clone()) } {
                        return Attempt::Packets;
                    }
                }
                Err(NoPassage::Program) if direct.operation == DirectOperation::Write => {
                    // This side's memory stays registered: the table has been locked since the engine checked it.
                    // A program that waits for the request has taken all earlier completions.
                    let copies = direct.len >= program_memory::WRITE_MIN
                        || is_awaited && !qp.may_have_completions();
                    let copied =
                        copies && program_memory::write(peer, &wanted, &direct, chunk.clone());
                    if !copied {
                        return match peer.why_unwritable() {
                            Some(_) => Attempt::Unwritable,
                            None => Attempt::Packets,
                        };
                    }
                }
                Err(NoPassage::Program) => {
                    // SAFETY: the engine checked this side's memory against the table, which has been locked since.
                    if !unsafe { program_memory::read(peer, &wanted, &direct, chunk.clone()) } {
                        return Attempt::Packets;
                    }
                }
                Err(NoPassage::Unknown) => return Attempt::Packets,
                Err(NoPassage::Missing) => {
                    self.request_memory_file();
                    return Attempt::Packets;
                }
            }
            *left = left.saturating_sub(chunk.end - chunk.start);
            if chunk.end == direct.len {
                return Attempt::Done;
            }
            done = chunk.end;
        }
    }

    /// Enters the peer's memory for a request. `None` if it needs packets.
    pub(super) fn enter<'a>(&self, peer: &'a PeerMemory, wanted: &Wanted) -> Option<Passage<'a>> {
        match peer.enter(wanted) {
            Ok(passage) => Some(passage),
            Err(NoPassage::Program | NoPassage::Unknown) => None,
            Err(NoPassage::Missing) => {
                self.request_memory_file();
                None
            }
        }
    }

    /// Makes the progress thread request a memory file of the peer.
    fn request_memory_file(&self) {
        if let Some(links) = &self.links {
            links.asked();
            self.progress.wake();
        }
    }

    /// Lets the peer access memory through a queue pair, if the peer is in another process of this host and the queue
    /// pair can receive. Withdraws the previous right first.
    pub(crate) fn give_qp(&self, state: &mut LockedQp) {
        self.end_direct(state);
        let (Some(links), Some(_), Some(path)) = (&self.links, state.peer, &state.path) else {
            return;
        };
        let engine = &state.engine;
        let receives = matches!(engine.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !receives || engine.qp_type() != QpType::Rc || state.closed {
            return;
        }
        let (attr, _) = engine.query();
        let mut access = attr.access;
        if attr.max_dest_rd_atomic == 0 {
            access.remove(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        }
        state.given = links.rights().give_qp(&QpRight {
            qpn: engine.qpn(),
            peer: state.peer_qpn,
            tag: tag_of(path.local, path.remote.ip()),
            pd: engine.pd(),
            access,
        });
    }

    /// Withdraws the peer's right to access memory through a queue pair. Its running request may go on.
    pub(crate) fn withdraw_qp(&self, state: &mut LockedQp) {
        if let (Some(slot), Some(links)) = (state.given.take(), &self.links) {
            let is_copying = links.rights().take_qp(slot);
            state.withdrawn = is_copying.then_some(slot);
        }
    }

    /// As [`withdraw_qp`](Self::withdraw_qp), and waits for the running request.
    pub(crate) fn end_direct(&self, state: &mut LockedQp) {
        self.withdraw_qp(state);
        if let (Some(slot), Some(links)) = (state.withdrawn.take(), &self.links) {
            links.rights().wait_for_qp(slot);
        }
    }

    /// Lets peers access a region directly, within the region's rights: one in a memory file, or to read it, one of the
    /// program's memory.
    pub(crate) fn give_key(
        &self,
        key: u32,
        region: &Region,
        pages: Option<&SharedPages>,
    ) -> Option<Slot> {
        let (file, offset) = pages.map(SharedPages::place).unwrap_or_default();
        let right = KeyRight {
            rkey: key,
            pd: region.pd,
            access: region.access,
            iova: region.iova,
            length: region.length,
            file,
            offset,
        };
        let right = match pages {
            Some(_) => right,
            None => right.of_program(region.addr),
        };
        self.links.as_ref()?.rights().give_key(&right)
    }

    /// Sets or removes the tap. While a tap is set, peers send packets.
    pub(crate) fn set_tap(&self, tap: Option<Arc<dyn Tap>>) {
        let is_plugged = tap.is_some();
        self.monitor.tap.set(tap);
        if let Some(links) = &self.links {
            links.rights().set_open(!is_plugged);
        }
    }
}

/// The part of a request to copy under one announcement, if `done` bytes are copied.
pub(super) fn chunk_of(direct: &Direct<'_>, done: u32) -> Range<u32> {
    done..direct.len.min(done.saturating_add(CHUNK))
}

pub(super) fn right_of(operation: DirectOperation) -> Access {
    match operation {
        DirectOperation::Write => Access::REMOTE_WRITE,
        DirectOperation::Read => Access::REMOTE_READ,
        DirectOperation::Atomic(_) => Access::REMOTE_ATOMIC,
    }
}

/// Copies a range of a request, or executes an atomic, which is one chunk.
///
/// `remote` is the start of the peer's memory for the whole request. Returns false if an atomic is not aligned.
///
/// # Safety
/// The memory of both sides is mapped, with the rights that the request needs.
#[inline]
pub(super) unsafe fn copy(remote: u64, direct: &Direct<'_>, range: Range<u32>) -> bool {
    let copy = match direct.len >= LONG_MIN {
        true => memory_access::copy_long,
        false => memory_access::copy,
    };
    match direct.operation {
        DirectOperation::Write => {
            // SAFETY: the caller's promise.
            unsafe {
                for_each_piece(&direct.local, range, |local, offset, len| {
                    copy(local, remote + u64::from(offset), len);
                });
            }
        }
        DirectOperation::Read => {
            // SAFETY: the caller's promise.
            unsafe {
                for_each_piece(&direct.local, range, |local, offset, len| {
                    copy(remote + u64::from(offset), local, len);
                });
            }
        }
        DirectOperation::Atomic(kind) => {
            // The packet path refuses an unaligned atomic.
            if !remote.is_multiple_of(8) || !direct.addr.is_multiple_of(8) {
                return false;
            }
            let operation = AtomicOperation { addr: remote, kind };
            // SAFETY: the caller's promise; both addresses are aligned.
            let original = unsafe { memory_access::execute_atomic(operation) }.to_ne_bytes();
            let from = original.as_ptr().expose_provenance() as u64;
            // SAFETY: the caller's promise; `original` is a local of this function.
            unsafe {
                for_each_piece(&direct.local, 0..8, |local, offset, len| {
                    memory_access::copy(from + u64::from(offset), local, len);
                });
            }
        }
    }
    true
}
