//! Receiving on an unreliable connection (IBTA 9.8.2).

use portolan_provider::verbs::{Access, WcOpcode, WcStatus, WorkCompletion};
use portolan_wire::Psn;
use portolan_wire::rocev2::Packet;

use super::{ReceiveFailed, Receiver};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::responder::{check_dma_length, check_payload_length, receive_completion};
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{DropReason, Placement, PlacementSource};

/// Where the receiver stands in the peer's messages.
#[derive(Debug)]
pub(super) struct Inbound {
    /// PSN of the next packet, if none is lost.
    expected: Psn,
    message: Message,
}

/// The message whose packets arrive.
#[derive(Debug)]
enum Message {
    /// None, or one of which a packet was lost or refused: what is left of it is dropped.
    None,
    /// A send, going to the oldest receive.
    Send { placed: u64, cursor: SgeCursor },
    /// A write, at `va` with `remaining` bytes to come of `total`.
    Write {
        rkey: u32,
        va: u64,
        remaining: u32,
        total: u32,
    },
}

/// Why a message ends before its time.
enum Refusal {
    /// It is dropped.
    Drop(DropReason),
    /// It is longer than the receive that it was to fill.
    TooLong,
    /// The memory of the receive may not be written.
    Forbidden,
}

impl Default for Inbound {
    fn default() -> Self {
        Self::starting_at(Psn::new(0))
    }
}

impl Inbound {
    pub(super) fn starting_at(expected: Psn) -> Self {
        let message = Message::None;
        Self { expected, message }
    }

    /// Whether a packet with this PSN is the next.
    pub(super) fn expects(&self, psn: Psn) -> bool {
        psn == self.expected
    }

    /// Gives up the message under way. Its receive waits for the next one.
    pub(super) fn abandon(&mut self) {
        self.message = Message::None;
    }
}

impl Receiver {
    /// Takes in a packet. After a loss, the next message is the first to be taken again
    /// (IBTA 9.8.2).
    pub(super) fn take_part(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), ReceiveFailed> {
        let (psn, opcode) = (packet.bth().psn, packet.bth().opcode);
        let is_next = self.inbound.expects(psn) || is_planted(Mutant::LossInMessageUnnoticed);
        self.inbound.expected = psn.next();
        if !is_next || opcode.starts_message() {
            self.inbound.abandon();
        }
        let taken = check_payload_length(packet, cx.mtu())
            .map_err(|_| Refusal::Drop(DropReason::Malformed))
            .and_then(|()| match opcode.is_send() {
                true => self.take_send(cx, packet, out),
                false => self.take_write(cx, packet, out),
            });
        match taken {
            Ok(()) if opcode.ends_message() => self.inbound.abandon(),
            Ok(()) => {}
            Err(refusal) => {
                self.inbound.abandon();
                match refusal {
                    Refusal::Drop(reason) => out.counters.count_drop(reason),
                    Refusal::TooLong => self.end_short_receive(cx, out),
                    Refusal::Forbidden => return Err(self.end_forbidden_receive(cx, out)),
                }
            }
        }
        Ok(())
    }

    fn take_send(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let starts = packet.bth().opcode.starts_message();
        let (placed, mut cursor) = match self.inbound.message {
            Message::Send { placed, cursor } => (placed, cursor),
            Message::None if starts => (0, SgeCursor::default()),
            _ => return Err(Refusal::Drop(DropReason::OutOfSequence)),
        };
        let no_receive = Refusal::Drop(DropReason::NoReceive);
        // Only the receive itself is in the memory of a shared queue's protection domain.
        let pd = self.queue.pd().unwrap_or(cx.pd);
        let receive = self.queue.front().ok_or(no_receive)?;
        let payload = packet.payload().len();
        let total = placed + payload as u64;
        if total > receive.capacity {
            return Err(Refusal::TooLong);
        }
        cursor
            .scatter(
                &receive.sges,
                placed,
                PlacementSource::Payload,
                payload,
                &Context { pd, ..*cx },
                out,
            )
            .map_err(|_| Refusal::Forbidden)?;
        let placed = total;
        self.inbound.message = Message::Send { placed, cursor };
        if packet.bth().opcode.ends_message() {
            let too_long = Refusal::Drop(DropReason::Length);
            let byte_len = u32::try_from(placed).map_err(|_| too_long)?;
            self.complete(cx, packet, WcOpcode::Recv, byte_len, out);
        }
        Ok(())
    }

    fn take_write(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth().opcode;
        let (rkey, va, remaining, total) = match (&self.inbound.message, packet.reth()) {
            (
                &Message::Write {
                    rkey,
                    va,
                    remaining,
                    total,
                },
                None,
            ) => (rkey, va, remaining, total),
            (Message::None, Some(reth)) => {
                check_dma_length(reth.dma_len).map_err(|_| Refusal::Drop(DropReason::Malformed))?;
                check_write(cx, reth.rkey, reth.va, reth.dma_len)?;
                (reth.rkey, reth.va, reth.dma_len, reth.dma_len)
            }
            _ => return Err(Refusal::Drop(DropReason::OutOfSequence)),
        };
        // A payload is no longer than an MTU.
        let len = packet.payload().len() as u32;
        let left = match remaining.checked_sub(len) {
            Some(0) if opcode.ends_message() => 0,
            Some(left) if left > 0 && !opcode.ends_message() => left,
            _ => return Err(Refusal::Drop(DropReason::Malformed)),
        };
        if opcode.has_immdt() && self.queue.front().is_none() {
            return Err(Refusal::Drop(DropReason::NoReceive));
        }
        if let Some(addr) = check_write(cx, rkey, va, len)? {
            let source_range = 0..packet.payload().len();
            out.placements.push_back(Placement {
                addr,
                source: PlacementSource::Payload,
                source_range,
            });
        }
        self.inbound.message = Message::Write {
            rkey,
            va: va.wrapping_add(len.into()),
            remaining: left,
            total,
        };
        if packet.immdt().is_some() {
            self.complete(cx, packet, WcOpcode::RecvRdmaWithImm, total, out);
        }
        Ok(())
    }

    fn complete(
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
            imm_data: packet.immdt().map(|immdt| u32::from_ne_bytes(immdt.0)),
            ..receive_completion(wr_id, WcStatus::Success, cx.qpn)
        };
        out.complete_receive(wc, packet.bth().solicited);
    }
}

/// Where the peer's write goes. Empty ranges are not checked (IBTA C9-88), and go nowhere.
fn check_write(cx: &Context<'_>, rkey: u32, va: u64, len: u32) -> Result<Option<u64>, Refusal> {
    let refused = Refusal::Drop(DropReason::Access);
    if !cx.attr.access.contains(Access::REMOTE_WRITE) {
        return Err(refused);
    }
    if len == 0 {
        return Ok(None);
    }
    match cx
        .memory
        .check_remote(cx.pd, cx.qpn, rkey, va, len, Access::REMOTE_WRITE)
    {
        Ok(addr) => Ok(Some(addr)),
        Err(_) => Err(refused),
    }
}
