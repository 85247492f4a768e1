//! Building the next request packet.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use portolan_provider::verbs::{SendOp, WcStatus};
use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::eth::{IethRepr, ImmDtRepr, RethRepr};
use portolan_wire::rocev2::Headers;

use super::reads::ReadRequest;
use super::{Broken, EntryData, Requester, SendEntry};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::{Context, fits};
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::{self, SgeCursor};
use crate::engine::{LocalAccessError, Segment};

/// Maximum number of packets in flight: half of the PSN space, less one, so that an acknowledgement is never ambiguous
/// (IBTA 9.7.1).
pub(super) const PACKETS_UNDER_WAY_MAX: u64 = (1 << 23) - 1;

/// A packet, without the borrow of its bytes.
#[derive(Debug)]
pub(in crate::engine::qp) struct Built {
    pub(in crate::engine::qp) headers: Headers,
    pub(in crate::engine::qp) source: Source,
}

/// The location of the payload.
#[derive(Debug)]
pub(in crate::engine::qp) enum Source {
    /// The segments passed to the builder.
    Segments,
    /// The inline bytes of an entry of the send queue.
    Inline { entry: usize, range: Range<usize> },
}

/// The fields that every packet of a send or write has.
pub(super) struct MessageBase {
    pub(super) bth: BthRepr,
    pub(super) immediate: Option<ImmDtRepr>,
    pub(super) payload_len: u32,
}

/// A part of an entry that is sent as one packet.
pub(super) struct Part {
    pub(super) headers: Headers,
    pub(super) payload_len: u32,
    /// Number of packet numbers used: one, or a read's number of responses.
    pub(super) packets: u64,
}

impl Requester {
    /// The next request packet that the window, fences, the read limit and the budget permit. Stores the segments of
    /// its payload in `segments`.
    pub(in crate::engine::qp) fn transmit(
        &mut self,
        cx: &Context<'_>,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Result<Option<Built>, Broken> {
        self.retransmit.end_rnr_wait(cx.now);
        if self.held || self.retransmit.is_rnr_waiting() {
            return Ok(None);
        }
        self.skip_done();
        if !self.give_up_records(cx) || self.holds_writes && self.waiting_write().is_some() {
            return Ok(None);
        }
        let Some(entry) = self.queue.get(self.entry) else {
            return Ok(None);
        };
        if self.is_held_back(cx.attr.state, entry) {
            return Ok(self.ask_for_acknowledgement(cx, segments, out));
        }
        if self.is_fenced(entry) {
            return Ok(None);
        }
        if entry.is_local() {
            return self.begin_local(cx, out).map(|()| None);
        }
        let part = match entry.op {
            SendOp::RdmaRead(_) => self.read_part(cx, entry),
            SendOp::AtomicCmpSwap { .. } | SendOp::AtomicFetchAdd { .. } => {
                self.atomic_part(cx, entry)
            }
            _ => self.message_part(cx, entry),
        };
        let Some(part) = part.filter(|part| fits(&part.headers, part.payload_len, budget_bytes))
        else {
            return Ok(None);
        };
        let Ok(source) = self.locate(cx, &part, segments) else {
            return self.stop_before_unusable_memory(cx, segments, out);
        };
        let built = Built {
            headers: part.headers,
            source,
        };
        self.advance(cx, part.packets, part.headers.bth.ack_request, out);
        Ok(Some(built))
    }

    /// A fenced request waits until earlier reads and atomics are complete (`IBV_SEND_FENCE` of ibv_post_send(3)).
    #[inline]
    pub(super) fn is_fenced(&self, entry: &SendEntry) -> bool {
        let earlier_read = |read: ReadRequest| read.first < entry.first;
        let entry_waits = entry.fence && !is_planted(Mutant::FenceIgnored);
        entry_waits && self.next == entry.first && self.reads.oldest().is_some_and(earlier_read)
    }

    /// The common fields of the next packet of a send or write. `None` if the window is full.
    #[inline]
    pub(super) fn message_base(&self, cx: &Context<'_>, entry: &SendEntry) -> Option<MessageBase> {
        let mtu = cx.mtu();
        let in_flight = self.in_flight(mtu);
        if self.window.room(in_flight, mtu) < u64::from(mtu)
            || self.next - self.una >= PACKETS_UNDER_WAY_MAX
        {
            return None;
        }
        let offset = (self.next - entry.first) * u64::from(mtu);
        let payload_len = (u64::from(entry.len) - offset).min(mtu.into()) as u32;
        let (is_first, is_last) = (self.next == entry.first, self.next + 1 == entry.end);
        let (opcode, immediate) = opcode_of(&entry.op, is_first, is_last);
        let mut bth = cx.bth(opcode, self.psn(self.next), payload_len);
        bth.solicited = is_last && entry.solicited;
        bth.ack_request = (is_last && self.wants_completion(entry))
            || self.is_ack_due(mtu)
            || self.window.room(in_flight + u64::from(mtu), mtu) < u64::from(mtu);
        Some(MessageBase {
            bth,
            immediate: immediate.map(|imm| ImmDtRepr(imm.to_ne_bytes())),
            payload_len,
        })
    }

    /// The next packet of a send or write.
    pub(super) fn message_part(&self, cx: &Context<'_>, entry: &SendEntry) -> Option<Part> {
        let MessageBase {
            bth,
            immediate,
            payload_len,
        } = self.message_base(cx, entry)?;
        let opcode = bth.opcode;
        let mut headers = Headers::from(bth);
        headers.xrceth = entry.xrceth;
        headers.immdt = immediate;
        if let SendOp::SendWithInv(rkey) = entry.op
            && opcode.has_ieth()
        {
            headers.ieth = Some(IethRepr { rkey });
        }
        if opcode.has_reth() {
            headers.reth = reth(&entry.op, 0, entry.len);
        }
        Some(Part {
            headers,
            payload_len,
            packets: 1,
        })
    }

    /// Whether the end of this message matters: to its owner; to the window and the timer, because it is the last one
    /// posted; to a read that may need more room in the window; or to local work that completes after it.
    fn wants_completion(&self, entry: &SendEntry) -> bool {
        let next = self.queue.get(self.entry + 1);
        entry.signaled || next.is_none_or(|next| next.awaits_data() || next.is_local())
    }

    /// Requests an acknowledgement at intervals, and with the first retransmitted packet.
    fn is_ack_due(&self, mtu: u32) -> bool {
        (self.since_ack_request + 1).saturating_mul(mtu) >= self.flow.ack_interval_bytes
            || (self.next == self.una && self.next < self.frontier)
    }

    /// The request of a read or atomic that contains the next packet, if it was sent before.
    pub(super) fn sent_read(&self) -> Option<ReadRequest> {
        // No look at the outstanding ones for each new one.
        let is_sent = self.next < self.frontier;
        is_sent.then(|| self.reads.containing(self.next)).flatten()
    }

    /// The next request of a read: the rest of an earlier one, or a new one as large as the window permits.
    fn read_part(&self, cx: &Context<'_>, entry: &SendEntry) -> Option<Part> {
        let mtu = u64::from(cx.mtu());
        let packets = match self.sent_read() {
            Some(sent) => sent.end - self.next,
            None => {
                if self.reads.len() >= usize::from(cx.attr.max_rd_atomic) {
                    return None;
                }
                let left = entry.end - self.next;
                let room = self.window.room(self.in_flight(cx.mtu()), cx.mtu()) / mtu;
                let largest = (u64::from(self.flow.read_request_bytes_max) / mtu).max(1);
                let free = PACKETS_UNDER_WAY_MAX.checked_sub(self.next - self.una)?;
                let packets = left.min(room).min(largest).min(free);
                // Avoid many small requests while a response trickles in: wait for half a window.
                let worthwhile = (u64::from(self.window.bytes()) / mtu / 2).max(1);
                if packets < left.min(largest).min(worthwhile) || packets == 0 {
                    return None;
                }
                packets
            }
        };
        let offset = (self.next - entry.first) * mtu;
        let bytes = (u64::from(entry.len) - offset).min(packets * mtu);
        let mut headers = cx.headers(Opcode::RcReadRequest, self.psn(self.next), 0);
        headers.xrceth = entry.xrceth;
        // Both fit: a message has at most 2^31 bytes.
        headers.reth = reth(&entry.op, offset as u32, bytes as u32);
        headers.bth.ack_request = true;
        Some(Part {
            headers,
            payload_len: 0,
            packets,
        })
    }

    /// Locates the bytes of a packet, or checks that the answer of a read or atomic may be written. Fails if the memory
    /// may not be used.
    pub(super) fn locate(
        &mut self,
        cx: &Context<'_>,
        part: &Part,
        segments: &mut Vec<Segment>,
    ) -> Result<Source, LocalAccessError> {
        segments.clear();
        let Some(entry) = self.queue.get(self.entry) else {
            return Ok(Source::Segments);
        };
        let mtu = u64::from(cx.mtu());
        let start = (self.next - entry.first) * mtu;
        if entry.awaits_data() {
            let end = (start + part.packets * mtu).min(entry.len.into());
            segment::check(entry.sges(), start..end, cx.pd, cx.memory, true)?;
            return Ok(Source::Segments);
        }
        if part.headers.bth.opcode.is_first() {
            // Send nothing of the message rather than a part.
            let whole = 0..u64::from(entry.len);
            segment::check(entry.sges(), whole, cx.pd, cx.memory, false)?;
        }
        let range = start..start + u64::from(part.payload_len);
        match &entry.data {
            EntryData::Sges | EntryData::One(_) => {
                let memory = (cx.memory, false);
                self.gather
                    .gather(entry.sges(), range, cx.pd, memory, segments)?;
                Ok(Source::Segments)
            }
            EntryData::Taken => Err(LocalAccessError::UnknownKey),
            EntryData::Inline => Ok(Source::Inline {
                entry: self.entry,
                range: range.start as usize..range.end as usize,
            }),
        }
    }

    /// The memory of the next packet may not be used. Earlier packets still count: the request fails once it is the
    /// oldest incomplete one.
    fn stop_before_unusable_memory(
        &mut self,
        cx: &Context<'_>,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Result<Option<Built>, Broken> {
        if self.next > self.una {
            return Ok(self.ask_for_acknowledgement(cx, segments, out));
        }
        Err(self.fail(self.next, WcStatus::LocProtErr, cx.qpn, out))
    }

    /// Advances past a part of `packets` packets, which counts as sent.
    #[inline]
    pub(super) fn advance(
        &mut self,
        cx: &Context<'_>,
        packets: u64,
        ack_request: bool,
        out: &mut Outbox,
    ) {
        let Some(entry) = self.queue.get(self.entry) else {
            return;
        };
        let end = self.next + packets;
        if !entry.has_record() {
            self.packets_until = self.packets_until.max(end);
        }
        if entry.awaits_data() && self.sent_read().is_none() {
            self.reads.push(ReadRequest {
                first: self.next,
                end,
            });
        }
        if end == entry.end {
            self.entry += 1;
            self.gather = SgeCursor::default();
        }
        self.note_sent(cx.now, end, ack_request, out);
    }

    /// The packets from the next one to before number `end` count as sent.
    #[inline(always)]
    pub(super) fn note_sent(
        &mut self,
        now: Duration,
        end: u64,
        ack_request: bool,
        out: &mut Outbox,
    ) {
        let fresh = self.next >= self.frontier;
        let idle = self.una == self.frontier;
        self.next = end;
        self.frontier = self.frontier.max(end);
        if ack_request {
            self.since_ack_request = 0;
        } else {
            self.since_ack_request += 1;
        }
        self.retransmit
            .on_transmit(now, end, idle, fresh && ack_request);
        out.counters.retransmits += u64::from(!fresh);
    }
}

/// The opcode of a packet of a send or write, and its immediate data.
fn opcode_of(op: &SendOp, is_first: bool, is_last: bool) -> (Opcode, Option<u32>) {
    use Opcode::*;
    let immediate = match *op {
        SendOp::SendWithImm(imm) | SendOp::RdmaWriteWithImm(_, imm) if is_last => Some(imm),
        _ => None,
    };
    let is_write = matches!(op, SendOp::RdmaWrite(_) | SendOp::RdmaWriteWithImm(..));
    if matches!(op, SendOp::SendWithInv(_)) && is_last {
        let opcode = if is_first {
            RcSendOnlyInv
        } else {
            RcSendLastInv
        };
        return (opcode, None);
    }
    let opcode = match (is_write, is_first, is_last, immediate.is_some()) {
        (false, true, true, false) => RcSendOnly,
        (false, true, true, true) => RcSendOnlyImm,
        (false, true, false, _) => RcSendFirst,
        (false, false, false, _) => RcSendMiddle,
        (false, false, true, false) => RcSendLast,
        (false, false, true, true) => RcSendLastImm,
        (true, true, true, false) => RcWriteOnly,
        (true, true, true, true) => RcWriteOnlyImm,
        (true, true, false, _) => RcWriteFirst,
        (true, false, false, _) => RcWriteMiddle,
        (true, false, true, false) => RcWriteLast,
        (true, false, true, true) => RcWriteLastImm,
    };
    (opcode, immediate)
}

/// The RETH for `bytes` bytes at `offset` of the operation's remote memory.
fn reth(op: &SendOp, offset: u32, bytes: u32) -> Option<RethRepr> {
    let remote = match op {
        SendOp::RdmaWrite(remote) | SendOp::RdmaWriteWithImm(remote, _) => remote,
        SendOp::RdmaRead(remote) => remote,
        _ => return None,
    };
    Some(RethRepr {
        va: remote.addr.wrapping_add(offset.into()),
        rkey: remote.rkey,
        dma_len: bytes,
    })
}
