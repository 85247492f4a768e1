//! Carrying out a request packet that is next in sequence.

use portolan_provider::verbs::{Access, WcOpcode, WcStatus, WorkCompletion};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{NakCode, Syndrome};
use portolan_wire::rocev2::Packet;

use super::validate::{check_dma_length, check_payload_length};
use super::{Fault, Inbound, Reply, Responder, packets_of, read_reply, receive_completion};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{Placement, PlacementSource};

/// The request is refused for now, for want of a receive: nothing was carried out.
struct NotReady;

impl Responder {
    pub(super) fn execute(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Fault> {
        let opcode = packet.bth().opcode;
        match opcode {
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
        self.accept(packet.bth().ack_request);
        Ok(())
    }

    /// Answers "receiver not ready" if no receive is posted (IBTA 9.7.5.2.8).
    fn check_receive(&mut self, cx: &Context<'_>, out: &mut Outbox) -> Result<(), NotReady> {
        if self.queue.front().is_some() {
            return Ok(());
        }
        // What follows is dropped without further ado: the peer sends it all again.
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
        // A shared receive's memory belongs to the protection domain of its queue.
        let pd = self.queue.pd().unwrap_or(cx.pd);
        let Some(receive) = self.queue.front() else {
            // A message under way keeps its receive; flushing ends both.
            return Err(Fault::INVALID_REQUEST);
        };
        let cx = &Context { pd, ..*cx };
        let (offset, payload) = (u64::from(placed), packet.payload().len());
        let total = offset + payload as u64;
        if total > receive.capacity {
            return Err(Fault {
                nak: NakCode::InvalidRequest,
                receive_status: Some(WcStatus::LocLenErr),
            });
        }
        self.scatter
            .scatter(
                &receive.sges,
                offset,
                PlacementSource::Payload,
                payload,
                cx,
                out,
            )
            .map_err(|_| Fault {
                nak: NakCode::RemoteOperationalError,
                receive_status: Some(WcStatus::LocProtErr),
            })?;
        let placed = u32::try_from(total).map_err(|_| Fault::INVALID_REQUEST)?;
        self.inbound = Inbound::Send { placed };
        if packet.bth().opcode.ends_message() {
            self.complete_receive(cx, packet, WcOpcode::Recv, placed, out);
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Fault> {
        let (rkey, va, remaining, total) = match (self.inbound, packet.reth()) {
            (
                Inbound::Write {
                    rkey,
                    va,
                    remaining,
                    total,
                },
                _,
            ) => (rkey, va, remaining, total),
            (_, Some(reth)) => {
                check_right(cx, Access::REMOTE_WRITE)?;
                check_dma_length(reth.dma_len)?;
                check_remote(cx, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_WRITE)?;
                (reth.rkey, reth.va, reth.dma_len, reth.dma_len)
            }
            (_, None) => return Err(Fault::INVALID_REQUEST),
        };
        // A payload is no longer than an MTU.
        let len = packet.payload().len() as u32;
        let opcode = packet.bth().opcode;
        let left = match remaining.checked_sub(len) {
            Some(0) if opcode.ends_message() => 0,
            Some(left) if left > 0 && !opcode.ends_message() => left,
            _ => return Err(Fault::INVALID_REQUEST),
        };
        if let Some(addr) = check_remote(cx, rkey, va, len, Access::REMOTE_WRITE)? {
            let source_range = 0..packet.payload().len();
            out.placements.push_back(Placement {
                addr,
                source: PlacementSource::Payload,
                source_range,
            });
        }
        self.inbound = Inbound::Write {
            rkey,
            va: va.wrapping_add(len.into()),
            remaining: left,
            total,
        };
        if packet.immdt().is_some() {
            self.complete_receive(cx, packet, WcOpcode::RecvRdmaWithImm, total, out);
        }
        Ok(())
    }

    /// Accepts a read: its responses are built when there is room to send them.
    fn execute_read(&mut self, cx: &Context<'_>, packet: &Packet<'_>) -> Result<(), Fault> {
        let reth = packet.reth().ok_or(Fault::INVALID_REQUEST)?;
        check_right(cx, Access::REMOTE_READ)?;
        check_dma_length(reth.dma_len)?;
        check_remote(cx, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_READ)?;
        let limit = self.check_resources(cx)?;
        let psn = self.expected;
        self.resources.remember_read(psn, reth, limit);
        self.complete_message();
        let reply = Reply::Read(read_reply(psn, &reth, self.msn));
        self.replies.push_data(reply, cx.mtu());
        self.expected = psn.add(packets_of(reth.dma_len, cx.mtu()));
        self.unacknowledged = 0;
        Ok(())
    }

    fn complete_receive(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        out: &mut Outbox,
    ) {
        let Some(wr_id) = self.queue.pop_front() else {
            return;
        };
        let wc = WorkCompletion {
            opcode,
            byte_len,
            invalidated_rkey: packet.ieth().map(|ieth| ieth.rkey),
            imm_data: packet.immdt().map(|immdt| u32::from_ne_bytes(immdt.0)),
            ..receive_completion(wr_id, WcStatus::Success, cx.qpn)
        };
        out.complete_receive(wc, packet.bth().solicited);
    }
}

/// Whether the packet needs a receive of its own to be posted: the start of a send, and the end of
/// a write with immediate data. A receive once found stays for the rest of the send.
fn takes_receive(opcode: Opcode) -> bool {
    (opcode.is_send() && opcode.starts_message()) || (opcode.is_write() && opcode.has_immdt())
}

/// The queue pair's own rights (an operation not enabled is an invalid request: IBTA 9.7.4.1, Linux
/// `check_op_valid`).
pub(super) fn check_right(cx: &Context<'_>, right: Access) -> Result<(), Fault> {
    if cx.attr.access.contains(right) {
        Ok(())
    } else {
        Err(Fault::INVALID_REQUEST)
    }
}

/// Where the peer's access goes. Empty ranges are not checked (IBTA C9-88), and go nowhere.
pub(super) fn check_remote(
    cx: &Context<'_>,
    rkey: u32,
    va: u64,
    len: u32,
    access: Access,
) -> Result<Option<u64>, Fault> {
    if len == 0 {
        return Ok(None);
    }
    match cx.memory.check_remote(cx.pd, cx.qpn, rkey, va, len, access) {
        Ok(addr) => Ok(Some(addr)),
        Err(_) => Err(Fault::ACCESS),
    }
}
