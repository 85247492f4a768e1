//! Executes a request packet that is next in sequence.

use portolan_provider::verbs::{Access, WcOpcode, WcStatus};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{NakCode, Syndrome};
use portolan_wire::rocev2::Packet;

use super::validate::{check_dma_length, check_payload_length};
use super::{Fault, Inbound, Reply, Responder, packets_of, read_reply};
use crate::engine::qp::context::Context;
use crate::engine::qp::inbound::{
    InboundWrite, SendRefusal, complete_receive, place_send, remote_range,
};
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::SgeCursor;

/// The request is refused for now, because no receive is posted. Nothing was executed.
pub(super) struct NotReady;

impl Responder {
    /// The address of a write that comes without packets, if it is allowed, and no message is in progress.
    pub(in crate::engine::qp) fn check_pulled(
        &self,
        cx: &Context<'_>,
        rkey: u32,
        va: u64,
        len: u32,
    ) -> Option<u64> {
        if !matches!(self.inbound, Inbound::Idle) {
            return None;
        }
        check_right(cx, Access::REMOTE_WRITE).ok()?;
        check_remote(cx, rkey, va, len, Access::REMOTE_WRITE).ok()?
    }

    pub(super) fn execute(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Fault> {
        let opcode = packet.bth().opcode;
        match opcode.as_rc() {
            Opcode::RcReadRequest => return self.execute_read(cx, packet),
            Opcode::RcCompareSwap | Opcode::RcFetchAdd => return self.execute_atomic(cx, packet),
            _ if opcode.is_send() || opcode.is_write() => {}
            _ => return Err(Fault::INVALID_REQUEST),
        }
        check_payload_length(packet, cx.mtu())?;
        if takes_receive(opcode) && self.check_receive(cx, out).is_err() {
            return Ok(());
        }
        if opcode.is_send() {
            let invalidate = Self::check_invalidate(cx, packet)?;
            self.execute_send(cx, packet, out)?;
            self.pending_invalidate = invalidate;
        } else {
            self.execute_write(cx, packet, out)?;
        }
        if opcode.ends_message() {
            self.complete_message();
        }
        self.accept(cx, packet.bth().ack_request);
        Ok(())
    }

    /// Answers "receiver not ready" if no receive is posted (IBTA 9.7.5.2.8).
    pub(super) fn check_receive(
        &mut self,
        cx: &Context<'_>,
        out: &mut Outbox,
    ) -> Result<(), NotReady> {
        if self.queue.front().is_some() {
            return Ok(());
        }
        // Drop the following packets silently, because the peer sends everything again.
        self.awaits_expected = true;
        out.counters.rnr_naks_sent += 1;
        let timer = cx.attr.min_rnr_timer;
        self.acknowledge(self.expected, Syndrome::RnrNak { timer });
        Err(NotReady)
    }

    fn execute_send(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Fault> {
        let placed = match self.inbound {
            Inbound::Send { placed } => placed,
            _ => {
                self.scatter = SgeCursor::default();
                0
            }
        };
        let (queue, cursor) = (&mut self.queue, &mut self.scatter);
        let total = place_send(queue, cursor, placed.into(), cx, packet, out);
        let total = total.map_err(|refusal| match refusal {
            // A message in progress keeps its receive; flushing ends both.
            SendRefusal::NoReceive => Fault::INVALID_REQUEST,
            SendRefusal::TooLong => Fault {
                nak: NakCode::InvalidRequest,
                receive_status: Some(WcStatus::LocLenErr),
            },
            SendRefusal::Forbidden => Fault {
                nak: NakCode::RemoteOperationalError,
                receive_status: Some(WcStatus::LocProtErr),
            },
        })?;
        let placed = u32::try_from(total).map_err(|_| Fault::INVALID_REQUEST)?;
        self.inbound = Inbound::Send { placed };
        if packet.bth().opcode.ends_message() {
            complete_receive(&mut self.queue, cx, packet, WcOpcode::Recv, placed, out);
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Fault> {
        let write = match (self.inbound, packet.reth()) {
            (Inbound::Write(write), _) => write,
            (_, Some(reth)) => {
                check_right(cx, Access::REMOTE_WRITE)?;
                check_dma_length(reth.dma_len)?;
                check_remote(cx, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_WRITE)?;
                InboundWrite::begin(&reth)
            }
            (_, None) => return Err(Fault::INVALID_REQUEST),
        };
        let left = write.left_after(packet).ok_or(Fault::INVALID_REQUEST)?;
        let placed = write.place(left, cx, packet, out);
        self.inbound = Inbound::Write(placed.map_err(|_| Fault::ACCESS)?);
        if packet.immdt().is_some() {
            let (queue, opcode) = (&mut self.queue, WcOpcode::RecvRdmaWithImm);
            complete_receive(queue, cx, packet, opcode, write.total(), out);
        }
        Ok(())
    }

    /// Accepts a read; its responses are built when they can be sent.
    fn execute_read(&mut self, cx: &Context<'_>, packet: &Packet<'_>) -> Result<(), Fault> {
        let reth = packet.reth().ok_or(Fault::INVALID_REQUEST)?;
        check_right(cx, Access::REMOTE_READ)?;
        check_dma_length(reth.dma_len)?;
        check_remote(cx, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_READ)?;
        let limit = self.check_resources(cx)?;
        let psn = self.expected;
        self.resources.remember_read(psn, reth, limit);
        self.complete_message();
        let reply = Reply::Read(read_reply(cx, psn, &reth, self.msn));
        self.replies.push_data(reply, cx.mtu());
        self.expected = psn.add(packets_of(reth.dma_len, cx.mtu()));
        self.answered_by_data();
        Ok(())
    }
}

/// Whether the packet needs a new receive: the start of a send, and the end of a write with immediate data. A send
/// keeps its receive for all packets.
fn takes_receive(opcode: Opcode) -> bool {
    (opcode.is_send() && opcode.starts_message()) || (opcode.is_write() && opcode.has_immdt())
}

/// Checks the queue pair's own rights. An operation that is not enabled is an invalid request (IBTA 9.7.4.1, Linux
/// `check_op_valid`).
pub(super) fn check_right(cx: &Context<'_>, right: Access) -> Result<(), Fault> {
    if cx.attr.access.contains(right) {
        Ok(())
    } else {
        Err(Fault::INVALID_REQUEST)
    }
}

/// The address of the peer's access. Empty ranges are not checked (IBTA C9-88) and have no address.
pub(super) fn check_remote(
    cx: &Context<'_>,
    rkey: u32,
    va: u64,
    len: u32,
    access: Access,
) -> Result<Option<u64>, Fault> {
    remote_range(cx, rkey, va, len, access).map_err(|_| Fault::ACCESS)
}
