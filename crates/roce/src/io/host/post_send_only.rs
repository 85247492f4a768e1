//! Posts a whole send and writes it to the ring at once, if the queue pair has nothing else to send.
//!
//! The record and the engine's state are the same as when the request is queued first and then sent
//! ([`send_only`](super::send_only)). But everything is decided once, and not by each layer again.

#![allow(unsafe_code, reason = "copies from registered memory to the ring")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_provider::verbs::SendWr;
use portolan_threads::{fence, fence_after_exchange};

use crate::engine::{Compact, MemoryTable, PlannedSend, QueuePair};
use crate::io::host::Host;
use crate::io::host::memory_access;
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::host::send_only::ack_of;
use crate::io::net::transmit::OpenRing;

impl Host {
    /// Posts a send and writes it to the ring. Returns false, and posts nothing, if the queue pair has something else to
    /// send, or sends no record, or if the request is another or an error.
    #[inline(always)]
    pub(crate) fn post_send_only(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        wr: &SendWr<'_>,
    ) -> bool {
        let is_possible = wr.ud.is_none()
            && state.link.is_some()
            && state.engine.may_post_send_only(wr)
            && !self.monitor.tap.is_plugged();
        if !is_possible {
            return false;
        }
        let Some(planned) = self.write_send(qp, state, wr) else {
            return false;
        };
        // The peer works on it already.
        let now = state.not_before(self.clock.recent());
        if !planned.is_inline() {
            state.engine.post_send_only(now, wr, &planned);
        }
        debug_assert!(
            state.engine.is_transmit_idle(),
            "nothing else was to be sent"
        );
        state.owes = false;
        if state.engine.has_results() {
            self.report(qp, state);
        } else {
            self.keep_timer_of_engine(qp, state);
        }
        true
    }

    /// Writes a send that the engine may post at once, and posts it if its data are inline. `None` if the ring has no room
    /// or the memory may not be used.
    #[inline(always)]
    fn write_send<'a>(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        wr: &SendWr<'a>,
    ) -> Option<PlannedSend<'a>> {
        let link = state.link.as_ref()?;
        // Before the ring: others hold the table while they write packets to it. Unlocked after it: that may be a locked
        // instruction, which waits until the record is in memory.
        let memory = self.memory.read();
        let mut ring = link.open_ring()?;
        let head = (state.own_tag, link.port());
        let owes = state.owes;
        let cross_out_and_fence = || match owes {
            // Mostly a receive has just noted it. One locked instruction is enough for both.
            true => {
                self.deferred_acks.cross_out(qp.qpn);
                fence_after_exchange();
            }
            false => fence(Ordering::SeqCst),
        };
        let latest = state.latest;
        let written = write_record(
            &mut ring,
            &mut state.engine,
            (|| latest.max(self.clock.recent()), &memory),
            head,
            wr,
            cross_out_and_fence,
        );
        ring.unlock();
        memory.unlock();
        written
    }
}

/// Writes the record of a send, with the acknowledgement that is due, and posts the send if its data are inline. The head is
/// the tag and the source port. `fence` is a sequentially consistent one.
#[inline(always)]
fn write_record<'a>(
    ring: &mut OpenRing<'_>,
    engine: &mut QueuePair,
    (now, memory): (impl FnOnce() -> Duration, &MemoryTable),
    (tag, source_port): (u32, u16),
    wr: &SendWr<'a>,
    fence: impl FnOnce(),
) -> Option<PlannedSend<'a>> {
    if !ring.has_room(Compact::PAYLOAD_MAX as usize) {
        return None;
    }
    let planned = engine.plan_send_only(memory, wr)?;
    let Some((place, addr)) = ring.begin(planned.send.len as usize) else {
        unreachable!("there is room, as checked above");
    };
    // SAFETY: the engine checked the memory against the table in the call above, and the table is locked while the
    // reference to it exists. `begin` reserved as many bytes at `addr`.
    unsafe { memory_access::gather_planned(&planned, addr) };
    engine.send_delayed_acknowledgement();
    let acknowledgement = engine.poll_acknowledgement();
    let compact = Compact {
        tag,
        source_port,
        send: Some(planned.send),
        acknowledgement: acknowledgement.map(|(bth, aeth)| ack_of(&bth, aeth.msn)),
        ..Compact::to(planned.dest_qp)
    };
    ring.end(place, &compact);
    if planned.is_inline() {
        engine.post_send_only(now(), wr, &planned);
    }
    ring.publish_with(fence);
    Some(planned)
}
