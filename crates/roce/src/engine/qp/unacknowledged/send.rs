//! Sending without acknowledgements.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use portolan_provider::verbs::{Mtu, QpAttr, QpInit, QpState, SendData, SendOp, SendWr, WcStatus};
use portolan_provider::{Error, Result, Step};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{DethRepr, ImmDtRepr, RethRepr};
use portolan_wire::rocev2::Headers;
use portolan_wire::{Psn, Qpn};

use crate::engine::path::Destination;
use crate::engine::qp::context::{Context, fits};
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::requester::{Built, Source};
use crate::engine::qp::segment::{self, SgeCursor};
use crate::engine::qp::send_entry::{EntryData, SendEntry};
use crate::engine::qp::send_queue::{SendQueue, total_length};
use crate::engine::{LocalAccessError, Path, Segment};

/// How long the requests of a connection wait for room in the ring of a process that does not read. One that runs reads
/// within milliseconds.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// A request failed because of its memory; the send queue must enter the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::qp) struct SendFailed;

/// The sending half of a UC or UD queue pair. Packets are numbered as in the requester.
#[derive(Debug)]
pub(in crate::engine::qp) struct Sender {
    queue: SendQueue,
    /// The destinations of the queue's entries, in the same order (UD).
    destinations: VecDeque<Destination>,
    /// The longest datagram.
    datagram_mtu: Mtu,
    sq_psn: Psn,
    /// Number of the next packet.
    next: u64,
    /// The position in the memory of the current entry.
    gather: SgeCursor,
    /// All packets of the oldest entry were returned. It completes at the next poll, because until then the host may be
    /// reading its inline bytes.
    is_front_sent: bool,
    /// Since when there has been no room for the next packet (UC).
    no_room_since: Option<Duration>,
}

/// A packet, without its bytes.
struct Part {
    headers: Headers,
    payload_len: u32,
    path: Option<Path>,
}

impl Sender {
    pub(super) fn new(init: &QpInit, datagram_mtu: Mtu) -> Self {
        Self {
            queue: SendQueue::new(init),
            destinations: VecDeque::new(),
            datagram_mtu,
            sq_psn: Psn::new(0),
            next: 0,
            gather: SgeCursor::default(),
            is_front_sent: false,
            no_room_since: None,
        }
    }

    pub(in crate::engine::qp) fn start(&mut self, attr: &QpAttr) {
        self.sq_psn = attr.sq_psn;
    }

    pub(in crate::engine::qp) fn post_message(
        &mut self,
        wr: &SendWr<'_>,
        attr: &QpAttr,
    ) -> Result<()> {
        use SendOp::{RdmaWrite, RdmaWriteWithImm, Send, SendWithImm};
        match wr.op {
            Send | SendWithImm(_) | RdmaWrite(_) | RdmaWriteWithImm(..) => {}
            other => {
                return Err(wrong_op(
                    "a send or RDMA write, because the type is UC",
                    &other,
                ));
            }
        }
        self.queue.push(wr, attr.path_mtu.bytes() as u32)
    }

    pub(in crate::engine::qp) fn post_datagram(
        &mut self,
        wr: &SendWr<'_>,
        to: Destination,
    ) -> Result<()> {
        match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) => {}
            other => return Err(wrong_op("a send, because the type is UD", &other)),
        }
        let len = match wr.data {
            SendData::Sges(sges) => total_length(sges),
            SendData::Inline(bytes) => bytes.len() as u64,
        };
        let mtu = self.datagram_mtu.bytes();
        if len > mtu as u64 {
            let (what, expected) = ("bytes of the datagram", format_args!("at most {mtu}"));
            return Err(Error::invalid(Step::PostSend, what, expected, len));
        }
        self.queue.push(wr, mtu as u32)?;
        self.destinations.push_back(to);
        Ok(())
    }

    /// Whether the first packet was sent, or skipped by a flush.
    pub(in crate::engine::qp) fn has_begun(&self) -> bool {
        self.next > 0
    }

    /// Number of requests in the send queue.
    pub(in crate::engine::qp) fn posted(&self) -> usize {
        self.queue.len()
    }

    /// The destination of the next datagram (UD).
    pub(in crate::engine::qp) fn next_destination(&self) -> Option<&Destination> {
        self.destinations.get(usize::from(self.is_front_sent))
    }

    /// Discards the requests after the first `posted`. None of them was started.
    pub(in crate::engine::qp) fn truncate(&mut self, posted: usize) {
        self.queue.truncate(posted);
        self.destinations.truncate(posted);
    }

    /// The next packet that the budget permits, and its destination if it is a datagram. Stores the segments of its
    /// payload in `segments`.
    pub(in crate::engine::qp) fn transmit(
        &mut self,
        cx: &Context<'_>,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> core::result::Result<Option<(Built, Option<Path>)>, SendFailed> {
        self.no_room_since = None;
        self.complete_sent(cx.qpn, out);
        let Some(entry) = self.queue.front() else {
            return Ok(None);
        };
        if self.is_held_back(cx.attr.state, entry) {
            return Ok(None);
        }
        let part = match self.destinations.front() {
            Some(to) => datagram_part(cx, entry, to, self.psn()),
            None => self.message_part(cx, entry),
        };
        if !fits(&part.headers, part.payload_len, budget_bytes) {
            return Ok(None);
        }
        let end = entry.end;
        let Ok(source) = self.locate(cx, &part, segments) else {
            self.complete_front(WcStatus::LocProtErr, cx.qpn, out);
            return Err(SendFailed);
        };
        self.next += 1;
        if self.next == end {
            self.is_front_sent = true;
        }
        let headers = part.headers;
        Ok(Some((Built { headers, source }, part.path)))
    }

    /// Whether an entry must wait until the queue pair returns to RTS.
    fn is_held_back(&self, state: QpState, entry: &SendEntry) -> bool {
        state == QpState::Sqd && self.next <= entry.first
    }

    /// Whether the oldest entry can be sent or completed.
    fn waits(&self, state: QpState) -> bool {
        let front = self.queue.front();
        self.is_front_sent
            || matches!(state, QpState::Rts | QpState::Sqd)
                && front.is_some_and(|entry| !self.is_held_back(state, entry))
    }

    /// The next packet finds no room. `anew`: there was some since the last call.
    pub(in crate::engine::qp) fn wait_for_room(&mut self, now: Duration, anew: bool) {
        if anew {
            self.no_room_since = None;
        }
        self.no_room_since.get_or_insert(now);
    }

    pub(super) fn next_timeout(&self, state: QpState) -> Option<Duration> {
        let since = self.no_room_since.filter(|_| self.waits(state));
        since.map(|since| since + ROOM_WAIT_MAX)
    }

    /// Completes the requests that have waited for room too long. They are lost, as packets are on the wire.
    pub(in crate::engine::qp) fn on_timeout(
        &mut self,
        state: QpState,
        now: Duration,
        qpn: Qpn,
        out: &mut Outbox,
    ) {
        while self.next_timeout(state).is_some_and(|due| due <= now) {
            self.is_front_sent = false;
            self.complete_front(WcStatus::Success, qpn, out);
        }
    }

    /// Completes the oldest entry if all its packets were returned.
    fn complete_sent(&mut self, qpn: Qpn, out: &mut Outbox) {
        if core::mem::take(&mut self.is_front_sent) {
            self.complete_front(WcStatus::Success, qpn, out);
        }
    }

    /// Whether all started requests are complete.
    pub(in crate::engine::qp) fn is_drained(&self) -> bool {
        let is_begun = self.queue.front().is_some_and(|it| it.first < self.next);
        !is_begun && !self.is_front_sent
    }

    /// Completes all requests in order: sent ones with success, the others with a flush error.
    pub(super) fn flush(&mut self, qpn: Qpn, out: &mut Outbox) {
        self.complete_sent(qpn, out);
        while self.queue.len() > 0 {
            self.complete_front(WcStatus::WrFlushErr, qpn, out);
        }
    }

    /// The inline bytes of the oldest entry.
    pub(in crate::engine::qp) fn inline_bytes(&self) -> &[u8] {
        self.queue.front().map_or(&[], SendEntry::inline)
    }

    fn psn(&self) -> Psn {
        // 2^24 divides 2^32, so truncating the number to 32 bits changes nothing.
        self.sq_psn.add(self.next as u32)
    }

    fn complete_front(&mut self, status: WcStatus, qpn: Qpn, out: &mut Outbox) {
        // Skip the numbers of unsent packets, so that they are not reused with other contents.
        if let Some(entry) = self.queue.front() {
            self.next = entry.end;
        }
        if let Some(wc) = self.queue.complete_front(status, qpn) {
            out.complete_send(wc);
        }
        self.destinations.pop_front();
        self.gather = SgeCursor::default();
    }

    /// The next packet of a send or write on an unreliable connection.
    fn message_part(&self, cx: &Context<'_>, entry: &SendEntry) -> Part {
        let mtu = u64::from(cx.mtu());
        let offset = (self.next - entry.first) * mtu;
        // At most an MTU.
        let payload_len = (u64::from(entry.len) - offset).min(mtu) as u32;
        let (is_first, is_last) = (self.next == entry.first, self.next + 1 == entry.end);
        let (opcode, immediate) = opcode_of(&entry.op, is_first, is_last);
        let mut headers = cx.headers(opcode, self.psn(), payload_len);
        headers.immdt = immediate.map(|imm| ImmDtRepr(imm.to_ne_bytes()));
        if opcode.has_reth()
            && let SendOp::RdmaWrite(remote) | SendOp::RdmaWriteWithImm(remote, _) = entry.op
        {
            headers.reth = Some(RethRepr {
                va: remote.addr,
                rkey: remote.rkey,
                dma_len: entry.len,
            });
        }
        headers.bth.solicited = is_last && entry.solicited;
        Part {
            headers,
            payload_len,
            path: None,
        }
    }

    /// Locates the bytes of a packet; fails if the memory may not be read.
    fn locate(
        &mut self,
        cx: &Context<'_>,
        part: &Part,
        segments: &mut Vec<Segment>,
    ) -> core::result::Result<Source, LocalAccessError> {
        segments.clear();
        let Some(entry) = self.queue.front() else {
            return Ok(Source::Segments);
        };
        if part.headers.bth.opcode.is_first() {
            // Send nothing of the message rather than a part.
            let whole = 0..u64::from(entry.len);
            segment::check(entry.sges(), whole, cx.pd, cx.memory, false)?;
        }
        let start = (self.next - entry.first) * u64::from(cx.mtu());
        let range = start..start + u64::from(part.payload_len);
        match &entry.data {
            EntryData::Sges | EntryData::One(_) => {
                let sges = entry.sges();
                self.gather
                    .gather(sges, range, cx.pd, (cx.memory, false), segments)?;
                Ok(Source::Segments)
            }
            EntryData::Taken => Err(LocalAccessError::UnknownKey),
            EntryData::Inline => Ok(Source::Inline {
                entry: 0,
                range: range.start as usize..range.end as usize,
            }),
        }
    }
}

/// Builds a datagram. A Q_Key with the highest bit set is not sent; the queue pair's own replaces it (IBTA 10.2.5).
fn datagram_part(cx: &Context<'_>, entry: &SendEntry, to: &Destination, psn: Psn) -> Part {
    let (opcode, immediate) = match entry.op {
        SendOp::SendWithImm(imm) => (Opcode::UdSendOnlyImm, Some(imm)),
        _ => (Opcode::UdSendOnly, None),
    };
    let mut headers = cx.headers(opcode, psn, entry.len);
    headers.bth.dest_qp = to.qpn;
    headers.bth.solicited = entry.solicited;
    headers.deth = Some(DethRepr {
        qkey: match to.qkey.is_controlled() {
            true => cx.attr.qkey,
            false => to.qkey,
        },
        src_qp: cx.qpn,
    });
    headers.immdt = immediate.map(|imm| ImmDtRepr(imm.to_ne_bytes()));
    Part {
        headers,
        payload_len: entry.len,
        path: Some(to.path),
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
    let opcode = match (is_write, is_first, is_last, immediate.is_some()) {
        (false, true, true, false) => UcSendOnly,
        (false, true, true, true) => UcSendOnlyImm,
        (false, true, false, _) => UcSendFirst,
        (false, false, false, _) => UcSendMiddle,
        (false, false, true, false) => UcSendLast,
        (false, false, true, true) => UcSendLastImm,
        (true, true, true, false) => UcWriteOnly,
        (true, true, true, true) => UcWriteOnlyImm,
        (true, true, false, _) => UcWriteFirst,
        (true, false, false, _) => UcWriteMiddle,
        (true, false, true, false) => UcWriteLast,
        (true, false, true, true) => UcWriteLastImm,
    };
    (opcode, immediate)
}

fn wrong_op(expected: &'static str, found: &SendOp) -> Error {
    Error::invalid(
        Step::PostSend,
        "opcode",
        expected,
        format_args!("{found:?}"),
    )
}
