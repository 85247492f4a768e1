//! The responder: checks request packets, executes them and answers (IBTA 9.7.4 and 9.7.5).

mod atomic;
mod execute;
mod invalidate;
mod placed;
mod replies;
mod resources;
mod send_only;
mod transmit;
mod validate;
mod xrc;

use alloc::sync::Arc;
use core::time::Duration;

use portolan_provider::Result;
use portolan_provider::verbs::{
    AsyncEvent, QpAttr, QpInit, RecvWr, Refusal, RefusedMemory, Srqn, WcStatus,
};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{CREDITS_UNLIMITED, NakCode, RethRepr, Syndrome};
use portolan_wire::rocev2::Packet;
use portolan_wire::{Psn, Qpn};

use super::context::{Context, distance};
use super::inbound::InboundWrite;
use super::outbox::Outbox;
use super::receive_queue::{ReceiveQueue, receive_completion};
use super::segment::SgeCursor;
use super::send_queue::{ATOMIC_BYTES, packets_of};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::{DropReason, FlowConfig, MemoryOperation, ReceiveDomain, ReceiveSource};
use atomic::PendingAtomic;
use replies::{Acknowledge, ReadReply, Replies, Reply};
use resources::Resources;
pub(super) use validate::{check_dma_length, check_payload_length};

/// 24 bits of message sequence number.
const MSN_MASK: u32 = 0x00FF_FFFF;

/// Why a request is refused for good (IBTA 9.7.4.1, 9.9.3): the peer gets `nak`, and the queue pair enters ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    nak: NakCode,
    /// The status of the message's receive, if the receive is the cause.
    receive_status: Option<WcStatus>,
}

impl Fault {
    const INVALID_REQUEST: Self = Self {
        nak: NakCode::InvalidRequest,
        receive_status: None,
    };
    const ACCESS: Self = Self {
        nak: NakCode::RemoteAccessError,
        receive_status: None,
    };
}

/// The refusal was queued. The queue pair must enter ERR and keep its queued packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// A message of several packets; some have arrived.
#[derive(Clone, Copy, Debug)]
enum Inbound {
    /// No message: the next packet starts one.
    Idle,
    /// A send, placed in the oldest receive.
    Send {
        placed: u32,
    },
    Write(InboundWrite),
}

/// The responder half of a queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    queue: ReceiveQueue,
    /// The domain of the queues that XRC requests name.
    domain: Option<Arc<dyn ReceiveDomain>>,
    /// The queue of the latest message.
    srqn: Option<Srqn>,
    /// PSN of the next request.
    expected: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    inbound: Inbound,
    scatter: SgeCursor,
    /// A NAK requested `expected` again; packets after it are dropped until it arrives.
    awaits_expected: bool,
    /// Packets executed since the last acknowledgement.
    unacknowledged: u32,
    /// The last executed packets belonged to sends and writes, and are not acknowledged yet.
    progress_unreported: bool,
    ack_interval_bytes: u32,
    /// When to acknowledge what was executed, if nothing is sent before.
    acknowledge_at: Option<Duration>,
    resources: Resources,
    /// The atomic of the handled packet, until the host has executed it.
    pending_atomic: Option<PendingAtomic>,
    /// The invalidation of the handled packet, until the host has executed it.
    pending_invalidate: Option<MemoryOperation>,
    replies: Replies,
}

impl Responder {
    pub(super) fn new(init: &QpInit, flow: &FlowConfig) -> Self {
        Self {
            queue: ReceiveQueue::new(init),
            domain: None,
            srqn: None,
            expected: Psn::new(0),
            msn: 0,
            inbound: Inbound::Idle,
            scatter: SgeCursor::default(),
            awaits_expected: false,
            unacknowledged: 0,
            progress_unreported: false,
            ack_interval_bytes: flow.ack_interval_bytes,
            acknowledge_at: None,
            resources: Resources::default(),
            pending_atomic: None,
            pending_invalidate: None,
            replies: Replies::default(),
        }
    }

    /// Uses a shared receive queue.
    pub(super) fn share_receives(&mut self, source: Arc<dyn ReceiveSource>) {
        self.queue.share(source);
    }

    /// Uses the shared receive queues of a domain.
    pub(super) fn join_domain(&mut self, domain: Arc<dyn ReceiveDomain>) {
        self.domain = Some(domain);
    }

    /// Initializes the PSN of a connection that becomes ready to receive.
    pub(super) fn start(&mut self, attr: &QpAttr) {
        self.expected = attr.rq_psn;
    }

    #[inline]
    pub(super) fn post(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        self.queue.push(wr)
    }

    /// Whether a request with this PSN is the next one.
    pub(in crate::engine::qp) fn expects(&self, psn: Psn) -> bool {
        psn == self.expected
    }

    /// Handles a request packet.
    pub(super) fn handle_request(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> core::result::Result<(), Refused> {
        let psn = packet.bth().psn;
        match distance(psn, self.expected) {
            0 => {}
            ahead if ahead > 0 && is_planted(Mutant::GapUnnoticed) => self.expected = psn,
            behind if behind < 0 && is_planted(Mutant::DuplicateExecuted) => self.expected = psn,
            ahead if ahead > 0 => {
                self.on_gap(out);
                return Ok(());
            }
            _ => {
                self.on_duplicate(cx, packet, out);
                return Ok(());
            }
        }
        self.awaits_expected = false;
        self.check_sequence(packet.bth().opcode)
            .and_then(|()| self.enter_queue(packet, out))
            .and_then(|pd| {
                let pd = pd.unwrap_or(cx.pd);
                self.execute(&Context { pd, ..*cx }, packet, out)
            })
            .map_err(|fault| self.refuse(cx, psn, fault, named_memory(packet), out))
    }

    /// Completes all remaining receives with a flush error, in order. Nothing more arrives, because ERR only leads to
    /// RESET, which reinitializes.
    pub(super) fn flush(&mut self, qpn: Qpn, out: &mut Outbox) {
        while let Some(wr_id) = self.queue.pop_front() {
            let wc = receive_completion(wr_id, WcStatus::WrFlushErr, qpn);
            if !is_planted(Mutant::ReceivesNotFlushed) {
                out.complete_receive(wc, false);
            }
        }
        self.resources.clear();
        self.acknowledge_at = None;
    }

    /// Discards queued responses.
    pub(super) fn silence(&mut self) {
        self.replies.clear();
    }

    /// Discards pending memory operations.
    pub(super) fn abandon(&mut self) {
        self.pending_atomic = None;
        self.pending_invalidate = None;
    }

    /// A packet is missing: reports it once (IBTA 9.7.5.1).
    fn on_gap(&mut self, out: &mut Outbox) {
        if self.awaits_expected {
            out.counters.count_drop(DropReason::OutOfSequence);
            return;
        }
        self.awaits_expected = true;
        out.counters.naks_sent += 1;
        let syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
        self.acknowledge(self.expected, syndrome);
    }

    /// A duplicate of an executed request. A read is executed again, because its data were lost, and an atomic's result
    /// is sent again (IBTA 9.7.5.1). Anything else is only acknowledged again.
    fn on_duplicate(&mut self, cx: &Context<'_>, packet: &Packet<'_>, out: &mut Outbox) {
        out.counters.duplicates += 1;
        let psn = packet.bth().psn;
        match packet.reth() {
            Some(reth) if packet.bth().opcode.as_rc() == Opcode::RcReadRequest => {
                let pd = self.source_of(packet).map_or(cx.pd, |source| source.pd());
                self.on_duplicate_read(&Context { pd, ..*cx }, psn, &reth, out);
            }
            _ if packet.bth().opcode.is_atomic() => self.on_duplicate_atomic(cx, packet, out),
            _ => {
                // Acknowledge as much as possible without skipping a read or atomic whose data may be missing.
                let end = self.resources.first_after(psn, self.expected);
                let syndrome = Syndrome::Ack {
                    credits: CREDITS_UNLIMITED,
                };
                self.acknowledge(end.unwrap_or(self.expected).sub(1), syndrome);
            }
        }
    }

    fn on_duplicate_read(&mut self, cx: &Context<'_>, psn: Psn, reth: &RethRepr, out: &mut Outbox) {
        if !self.resources.allows(psn, reth, cx.mtu()) {
            out.counters.count_drop(DropReason::StaleRead);
            return;
        }
        if self.replies.will_send(psn, cx.mtu()) {
            return;
        }
        if self.replies.data() >= usize::from(cx.attr.max_dest_rd_atomic) {
            out.counters.count_drop(DropReason::StaleRead);
            return;
        }
        let reply = ReadReply {
            is_repeated: true,
            ..read_reply(cx, psn, reth, self.msn)
        };
        self.replies.push_data(Reply::Read(reply), cx.mtu());
    }

    /// Refuses a request for good.
    fn refuse(
        &mut self,
        cx: &Context<'_>,
        psn: Psn,
        fault: Fault,
        memory: Option<RefusedMemory>,
        out: &mut Outbox,
    ) -> Refused {
        out.counters.naks_sent += 1;
        let mut refusal = Refusal::new(peer_status(fault.nak), memory);
        if fault.nak == NakCode::RemoteAccessError {
            refusal.denial = memory.map(|named| cx.memory.denial(cx.pd, cx.qpn, &named));
        }
        out.refusal = Some(refusal);
        self.acknowledge(psn, Syndrome::Nak(fault.nak));
        if let Some(status) = fault.receive_status
            && let Some(wr_id) = self.queue.pop_front()
        {
            out.complete_receive(receive_completion(wr_id, status, cx.qpn), false);
            return Refused;
        }
        // No completion reports this to the owner, so raise an event (IBTA 10.10, affiliated asynchronous errors).
        out.raise(match fault.nak {
            NakCode::RemoteAccessError => AsyncEvent::QpAccessErr(cx.qpn),
            _ => AsyncEvent::QpReqErr(cx.qpn),
        });
        Refused
    }

    #[inline]
    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        self.unacknowledged = 0;
        self.acknowledge_at = None;
        self.replies.push_acknowledge(Acknowledge {
            psn,
            syndrome,
            msn: self.msn,
        });
    }

    /// The packet with the expected PSN was executed; acknowledges it on request or when due.
    #[inline]
    fn accept(&mut self, cx: &Context<'_>, ack_request: bool) {
        let psn = self.expected;
        self.expected = psn.next();
        self.unacknowledged += 1;
        self.progress_unreported = true;
        let is_due = || {
            let bytes = self.unacknowledged.saturating_mul(cx.mtu());
            bytes >= self.ack_interval_bytes
        };
        if ack_request || is_due() {
            let credits = CREDITS_UNLIMITED;
            self.acknowledge(psn, Syndrome::Ack { credits });
        }
    }

    /// Data answer the last request, which acknowledges all requests before it.
    fn answered_by_data(&mut self) {
        self.unacknowledged = 0;
        self.acknowledge_at = None;
        self.progress_unreported = false;
    }

    #[inline]
    fn complete_message(&mut self) {
        self.inbound = Inbound::Idle;
        self.msn = (self.msn + 1) & MSN_MASK;
    }
}

/// How a request that is refused with `nak` completes at the peer (IBTA 11.6.2).
fn peer_status(nak: NakCode) -> WcStatus {
    match nak {
        NakCode::RemoteAccessError => WcStatus::RemAccessErr,
        NakCode::RemoteOperationalError => WcStatus::RemOpErr,
        _ => WcStatus::RemInvReqErr,
    }
}

/// The memory that a request packet names.
fn named_memory(packet: &Packet<'_>) -> Option<RefusedMemory> {
    let of_reth = packet.reth().map(|reth| RefusedMemory {
        addr: reth.va,
        length: reth.dma_len,
        rkey: reth.rkey,
    });
    of_reth.or_else(|| {
        packet.atomic_eth().map(|atomic| RefusedMemory {
            addr: atomic.va,
            length: ATOMIC_BYTES as u32,
            rkey: atomic.rkey,
        })
    })
}

/// The responses to a read at `psn`.
fn read_reply(cx: &Context<'_>, psn: Psn, reth: &RethRepr, msn: u32) -> ReadReply {
    ReadReply {
        psn: psn.add(u32::from(is_planted(Mutant::ReadNumberedFromNext))),
        pd: cx.pd,
        is_first: true,
        remaining: reth.dma_len,
        va: reth.va,
        rkey: reth.rkey,
        msn,
        is_repeated: false,
    }
}
