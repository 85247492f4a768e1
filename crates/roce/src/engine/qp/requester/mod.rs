//! The requester: turns the send queue into request packets, and responses into completions
//! (IBTA 9.7.3 and 9.7.6).
//!
//! Packets are numbered from 0 without wrapping; packet `n` has the PSN `sq_psn + n`. Three numbers describe the
//! requester's state:
//!
//! ```text
//!   acknowledged │ under way │ to be sent again │ never sent
//!               una         next            frontier
//! ```
//!
//! Losses are repaired by going back: `next` returns to `una` and everything is sent again (IBTA 9.7.6, go-back-N). An
//! RDMA read uses as many numbers as it has responses.

mod acknowledge;
mod atomic;
mod direct;
mod drain;
mod local;
mod placed;
mod placed_runs;
mod reads;
mod send_only;
mod transmit;

use core::time::Duration;

use portolan_provider::verbs::{QpAttr, QpInit, QpState, SendWr, WcStatus};
use portolan_provider::{Error, Result, Step};
use portolan_wire::{Psn, Qpn};

use super::congestion_window::CongestionWindow;
use super::outbox::Outbox;
use super::retransmit_timer::{Exhausted, Retransmit};
use super::segment::SgeCursor;
use super::send_entry::{EntryData, SendEntry, awaits_data};
use super::send_queue::SendQueue;
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::{FlowConfig, MemoryOperation};
use placed_runs::PlacedRuns;
use reads::Reads;
pub(super) use transmit::{Built, Source};

/// The send queue cannot continue: a request failed and the queue pair must enter ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The requester half of a queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    queue: SendQueue,
    sq_psn: Psn,
    una: u64,
    next: u64,
    frontier: u64,
    /// All after this number went as records of writes whose bytes were placed before.
    packets_until: u64,
    /// Where the bytes of these writes are.
    placed: PlacedRuns,
    /// The peer has acknowledged a packet since the queue pair was connected.
    is_answered: bool,
    /// Writes that can be placed soon wait for that.
    holds_writes: bool,
    /// Index of the entry that contains packet `next`, and the position in its memory.
    entry: usize,
    gather: SgeCursor,
    /// The peer carries out the oldest request, or the host copies one in turns. None is started meanwhile.
    pub(in crate::engine::qp) held: bool,
    /// The next packets are to go another way, once nothing is in flight. No request is begun before.
    pub(in crate::engine::qp) changes_way: bool,
    /// The position in the memory of the read whose responses arrive.
    scatter: SgeCursor,
    /// Outstanding reads and atomics.
    reads: Reads,
    /// The operation that the host must execute for the next entry.
    pending_local: Option<MemoryOperation>,
    /// Packets sent since the last request for an acknowledgement.
    since_ack_request: u32,
    /// The loss before this number was already repaired: further signs of it are ignored.
    gap_repaired_at: Option<u64>,
    window: CongestionWindow,
    retransmit: Retransmit,
    flow: FlowConfig,
}

impl Requester {
    pub(super) fn new(init: &QpInit, flow: &FlowConfig) -> Self {
        Self {
            queue: SendQueue::new(init),
            sq_psn: Psn::new(0),
            una: 0,
            next: 0,
            frontier: 0,
            packets_until: 0,
            placed: PlacedRuns::default(),
            is_answered: false,
            holds_writes: false,
            entry: 0,
            gather: SgeCursor::default(),
            held: false,
            changes_way: false,
            scatter: SgeCursor::default(),
            reads: Reads::default(),
            pending_local: None,
            since_ack_request: 0,
            gap_repaired_at: None,
            window: CongestionWindow::new(flow),
            retransmit: Retransmit::new(flow),
            flow: *flow,
        }
    }

    /// Initializes the PSN and the timers of a connection that becomes ready to send.
    pub(super) fn start(&mut self, attr: &QpAttr) {
        self.sq_psn = attr.sq_psn;
        self.is_answered = false;
        self.configure(attr);
    }

    /// Applies attributes that may change while the send queue is drained. The PSN is none of them: it counts what was
    /// sent by packets only.
    pub(super) fn configure(&mut self, attr: &QpAttr) {
        self.retransmit.configure(attr);
    }

    #[inline]
    pub(super) fn post(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<()> {
        if awaits_data(&wr.op) && attr.max_rd_atomic == 0 {
            let (what, expected) = (
                "opcode",
                "no RDMA read or atomic, because max_rd_atomic is 0",
            );
            let found = "RDMA read or atomic";
            return Err(Error::invalid(Step::PostSend, what, expected, found));
        }
        self.queue.push(wr, attr.path_mtu.bytes() as u32)
    }

    /// Number of requests in the send queue.
    #[inline]
    pub(super) fn posted(&self) -> usize {
        self.queue.len()
    }

    /// Number of packets in flight.
    #[inline]
    pub(super) fn under_way(&self) -> u64 {
        self.next - self.una
    }

    /// Whether packets are in flight, and not only records.
    #[inline]
    pub(super) fn has_packets_under_way(&self) -> bool {
        self.una < self.packets_until
    }

    /// Number of packets of posted requests that are unsent or must be sent again.
    #[inline]
    pub(super) fn waiting(&self) -> u64 {
        self.queue.end() - self.next
    }

    /// Discards the requests after the first `posted`. None of them was started.
    pub(super) fn truncate(&mut self, posted: usize) {
        self.queue.truncate(posted);
    }

    #[inline]
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        self.retransmit.next_timeout()
    }

    /// Since when the peer has had no receive for the oldest unacknowledged message.
    pub(in crate::engine::qp) fn not_ready_since(&self) -> Option<Duration> {
        self.retransmit.not_ready_since()
    }

    /// Whether a request waits only for room to be sent.
    fn waits_for_room(&self, state: QpState) -> bool {
        let entry = self.queue.get(self.entry).filter(|_| !self.held);
        self.waiting() > 0
            && matches!(state, QpState::Rts | QpState::Sqd)
            && entry.is_some_and(|entry| !self.is_held_back(state, entry))
    }

    /// The next packet or record cannot be sent. Until it is, the timer runs.
    pub(super) fn wait_for_room(&mut self, state: QpState, now: Duration) {
        if self.waits_for_room(state) {
            self.retransmit.keep_running(now, self.una == self.frontier);
        }
    }

    /// There was room, so the request that waits for it has its time again, if nothing is in flight.
    pub(super) fn note_room(&mut self) {
        if self.una == self.frontier {
            self.retransmit.stop();
        }
    }

    /// Goes back or gives up, if no answer arrived in time.
    pub(super) fn on_timeout(
        &mut self,
        state: QpState,
        now: Duration,
        qpn: Qpn,
        out: &mut Outbox,
    ) -> core::result::Result<(), Broken> {
        if self.retransmit.is_rnr_waiting() {
            self.retransmit.end_rnr_wait(now);
            return Ok(());
        }
        let is_idle = self.una == self.frontier;
        if is_idle && !self.waits_for_room(state) {
            self.retransmit.stop();
            return Ok(());
        }
        match self.retransmit.on_timeout(now) {
            Ok(true) if !is_idle => {
                out.counters.timeouts += 1;
                self.window.on_timeout(self.frontier);
                self.gap_repaired_at = None;
                self.rewind();
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Exhausted) => Err(self.fail(self.una, WcStatus::RetryExcErr, qpn, out)),
        }
    }

    /// Completes all remaining requests with a flush error, in order.
    pub(super) fn flush(&mut self, qpn: Qpn, out: &mut Outbox) {
        let first = out.completions.all().len();
        while self.queue.len() > 0 {
            self.complete_front(WcStatus::WrFlushErr, qpn, out);
        }
        if is_planted(Mutant::FlushedBackwards) {
            let flushed = out.completions.all_mut().get_mut(first..);
            flushed.unwrap_or_default().reverse();
        }
        self.reads.clear();
        self.pending_local = None;
        self.retransmit.stop();
    }

    /// The request of packet `number` fails with `status`. Earlier requests, whose result will never be known, are
    /// flushed (completions keep their order).
    fn fail(&mut self, number: u64, status: WcStatus, qpn: Qpn, out: &mut Outbox) -> Broken {
        while self.queue.front().is_some_and(|entry| entry.end <= number) {
            self.complete_front(WcStatus::WrFlushErr, qpn, out);
        }
        self.complete_front(status, qpn, out);
        Broken
    }

    /// Completes finished requests, oldest first.
    #[inline(always)]
    fn complete_finished(&mut self, qpn: Qpn, out: &mut Outbox) {
        let una = self.una;
        let is_finished =
            |entry: &SendEntry| entry.end <= una && (!entry.is_local() || entry.is_done());
        while self.queue.front().is_some_and(is_finished) {
            self.complete_oldest(WcStatus::Success, qpn, out);
            self.scatter = SgeCursor::default();
        }
    }

    fn complete_front(&mut self, status: WcStatus, qpn: Qpn, out: &mut Outbox) {
        self.complete_oldest(status, qpn, out);
    }

    /// As [`complete_front`](Self::complete_front), for the usual case.
    #[inline(always)]
    fn complete_oldest(&mut self, status: WcStatus, qpn: Qpn, out: &mut Outbox) {
        if let Some(wc) = self.queue.complete_front(status, qpn) {
            out.complete_send(wc);
        }
        self.entry = self.entry.saturating_sub(1);
    }

    /// Everything from the first unacknowledged packet on must be sent again.
    fn rewind(&mut self) {
        self.next = self.una;
        // The entry of `una` is the oldest, because earlier ones are complete and removed.
        self.entry = 0;
        self.gather = SgeCursor::default();
        self.retransmit.on_rewind();
    }

    #[inline]
    fn psn(&self, number: u64) -> Psn {
        // 2^24 divides 2^32, so truncating the number to 32 bits changes nothing.
        self.sq_psn.add(number as u32)
    }

    /// Bytes in flight, with each packet counted as a full one, because packets fill the peer's socket buffer as much
    /// as their bytes do.
    #[inline]
    fn in_flight(&self, mtu: u32) -> u64 {
        self.under_way() * u64::from(mtu)
    }

    /// The inline bytes of the entry at `index`, counted from the oldest.
    pub(super) fn inline_bytes(&self, index: usize) -> &[u8] {
        self.queue.get(index).map_or(&[], SendEntry::inline)
    }
}
