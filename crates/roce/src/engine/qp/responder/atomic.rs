//! Atomics: executed once, answered as often as requested (IBTA 9.4.5).

use portolan_provider::verbs::Access;
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::AtomicEthRepr;
use portolan_wire::rocev2::Packet;

use super::execute::{check_remote, check_right};
use super::replies::{AtomicReply, Reply};
use super::resources::AtomicRequest;
use super::{Fault, Inbound, Responder};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::send_queue::ATOMIC_BYTES;
use crate::engine::{AtomicKind, AtomicOperation, CompactAtomic, DropReason};

/// An atomic that the host executes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAtomic {
    psn: Psn,
    request: AtomicRequest,
    operation: AtomicOperation,
    msn: u32,
    /// Limit of the responder resources.
    limit: u8,
}

impl Responder {
    /// Accepts an atomic that came without a packet, if it is next and allowed. `false` changes nothing.
    pub(in crate::engine::qp) fn take_atomic(
        &mut self,
        cx: &Context<'_>,
        atomic: &CompactAtomic,
        operands: &AtomicEthRepr,
    ) -> bool {
        if atomic.psn != self.expected || !matches!(self.inbound, Inbound::Idle) {
            return false;
        }
        let request = AtomicRequest {
            opcode: atomic.opcode(),
            eth: *operands,
        };
        let is_accepted = self.accept_atomic(cx, request).is_ok();
        if is_accepted {
            self.awaits_expected = false;
        }
        is_accepted
    }

    /// Accepts an atomic, which the host executes next.
    pub(super) fn execute_atomic(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Fault> {
        let request = request_of(packet).ok_or(Fault::INVALID_REQUEST)?;
        self.accept_atomic(cx, request)
    }

    /// As [`execute_atomic`](Self::execute_atomic). An error changes nothing.
    fn accept_atomic(&mut self, cx: &Context<'_>, request: AtomicRequest) -> Result<(), Fault> {
        let (eth, right) = (request.eth, Access::REMOTE_ATOMIC);
        check_right(cx, right)?;
        // An address that is not a multiple of eight is an invalid request, not an access error (IBTA 9.7.5.2, Linux
        // RESPST_ERR_MISALIGNED_ATOMIC).
        if !eth.va.is_multiple_of(ATOMIC_BYTES) {
            return Err(Fault::INVALID_REQUEST);
        }
        let len = ATOMIC_BYTES as u32;
        let addr = check_remote(cx, eth.rkey, eth.va, len, right)?.ok_or(Fault::ACCESS)?;
        // The iova of memory may have another alignment than its address.
        if !addr.is_multiple_of(ATOMIC_BYTES) {
            return Err(Fault::INVALID_REQUEST);
        }
        let limit = self.check_resources(cx)?;
        let psn = self.expected;
        self.complete_message();
        self.pending_atomic = Some(PendingAtomic {
            psn,
            request,
            operation: AtomicOperation {
                addr,
                kind: kind_of(&request),
            },
            msn: self.msn,
            limit,
        });
        self.expected = psn.next();
        self.answered_by_data();
        Ok(())
    }

    /// The operation that the host must execute.
    pub(in crate::engine::qp) fn pending_atomic(&self) -> Option<AtomicOperation> {
        self.pending_atomic.map(|pending| pending.operation)
    }

    /// The host has executed it; `original` is the previous value.
    pub(in crate::engine::qp) fn complete_atomic(&mut self, original: u64, mtu: u32) {
        let Some(pending) = self.pending_atomic.take() else {
            return;
        };
        let PendingAtomic {
            psn,
            request,
            msn,
            limit,
            ..
        } = pending;
        self.resources
            .remember_atomic(psn, request, original, limit);
        let reply = AtomicReply {
            psn,
            original,
            msn,
            is_repeated: false,
        };
        self.replies.push_data(Reply::Atomic(reply), mtu);
    }

    /// A duplicate of an executed atomic: its stored result is sent again.
    pub(super) fn on_duplicate_atomic(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) {
        let psn = packet.bth().psn;
        if is_planted(Mutant::AtomicExecutedAgain) {
            let expected = core::mem::replace(&mut self.expected, psn);
            // The reason for the refusal does not matter: the planted defect is that it is checked at all.
            let _ = self.execute_atomic(cx, packet);
            self.expected = expected;
            return;
        }
        let result = request_of(packet).and_then(|request| self.resources.result_of(psn, &request));
        let Some(original) = result else {
            out.counters.count_drop(DropReason::StaleAtomic);
            return;
        };
        if self.replies.will_send(psn, cx.mtu()) {
            return;
        }
        if self.replies.data() >= usize::from(cx.attr.max_dest_rd_atomic) {
            out.counters.count_drop(DropReason::StaleAtomic);
            return;
        }
        let reply = AtomicReply {
            psn,
            original,
            msn: self.msn,
            is_repeated: true,
        };
        self.replies.push_data(Reply::Atomic(reply), cx.mtu());
    }

    /// Checks that one more read or atomic may be outstanding; returns the limit.
    pub(super) fn check_resources(&mut self, cx: &Context<'_>) -> Result<u8, Fault> {
        let limit = cx.attr.max_dest_rd_atomic;
        if limit == 0
            || (self.replies.data() >= usize::from(limit) && !self.replies.drop_oldest_repeated())
        {
            return Err(Fault::INVALID_REQUEST);
        }
        Ok(limit)
    }
}

fn request_of(packet: &Packet<'_>) -> Option<AtomicRequest> {
    Some(AtomicRequest {
        opcode: packet.bth().opcode,
        eth: packet.atomic_eth()?,
    })
}

fn kind_of(request: &AtomicRequest) -> AtomicKind {
    let eth = &request.eth;
    match request.opcode.as_rc() {
        Opcode::RcCompareSwap => AtomicKind::CompareSwap {
            compare: eth.compare,
            swap: eth.swap_or_add,
        },
        _ => AtomicKind::FetchAdd {
            add: eth.swap_or_add,
        },
    }
}
