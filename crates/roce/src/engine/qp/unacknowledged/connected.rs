//! Receiving on an unreliable connection (IBTA 9.8.2).

use portolan_provider::verbs::{Access, WcOpcode};
use portolan_wire::Psn;
use portolan_wire::rocev2::Packet;

use super::{ReceiveFailed, Receiver};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::Context;
use crate::engine::qp::inbound::{
    InboundWrite, SendRefusal, complete_receive, place_send, remote_range,
};
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::responder::{check_dma_length, check_payload_length};
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{DropReason, RemoteAccessError};

/// The receiver's position in the peer's messages.
#[derive(Debug)]
pub(super) struct Inbound {
    /// PSN of the next packet, if none is lost.
    expected: Psn,
    message: Message,
}

/// The message being received.
#[derive(Debug)]
enum Message {
    /// None, or a message that lost a packet or was refused, whose rest is dropped.
    None,
    /// A send, placed in the oldest receive.
    Send {
        placed: u64,
        cursor: SgeCursor,
    },
    Write(InboundWrite),
}

/// Why the rest of a message is dropped.
enum Refusal {
    /// It is dropped.
    Drop(DropReason),
    /// The message is longer than its receive.
    TooLong,
    /// The memory of the receive is not writable.
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

    /// Whether a packet with this PSN is the next one.
    pub(super) fn expects(&self, psn: Psn) -> bool {
        psn == self.expected
    }

    /// Abandons the current message. Its receive is used for the next one.
    pub(super) fn abandon(&mut self) {
        self.message = Message::None;
    }
}

impl Receiver {
    /// Handles a packet. After a loss, reception resumes with the next message (IBTA 9.8.2).
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
        let placed = place_send(&mut self.queue, &mut cursor, placed, cx, packet, out)?;
        self.inbound.message = Message::Send { placed, cursor };
        if packet.bth().opcode.ends_message() {
            let too_long = Refusal::Drop(DropReason::Length);
            let byte_len = u32::try_from(placed).map_err(|_| too_long)?;
            complete_receive(&mut self.queue, cx, packet, WcOpcode::Recv, byte_len, out);
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
        let write = match (&self.inbound.message, packet.reth()) {
            (&Message::Write(write), None) => write,
            (Message::None, Some(reth)) => {
                check_dma_length(reth.dma_len).map_err(|_| Refusal::Drop(DropReason::Malformed))?;
                if !cx.attr.access.contains(Access::REMOTE_WRITE) {
                    return Err(Refusal::Drop(DropReason::Access));
                }
                remote_range(cx, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_WRITE)?;
                InboundWrite::begin(&reth)
            }
            _ => return Err(Refusal::Drop(DropReason::OutOfSequence)),
        };
        let left = write.left_after(packet);
        let left = left.ok_or(Refusal::Drop(DropReason::Malformed))?;
        if opcode.has_immdt() && self.queue.front().is_none() {
            return Err(Refusal::Drop(DropReason::NoReceive));
        }
        self.inbound.message = Message::Write(write.place(left, cx, packet, out)?);
        if packet.immdt().is_some() {
            let (queue, opcode) = (&mut self.queue, WcOpcode::RecvRdmaWithImm);
            complete_receive(queue, cx, packet, opcode, write.total(), out);
        }
        Ok(())
    }
}

impl From<SendRefusal> for Refusal {
    fn from(refusal: SendRefusal) -> Self {
        match refusal {
            SendRefusal::NoReceive => Self::Drop(DropReason::NoReceive),
            SendRefusal::TooLong => Self::TooLong,
            SendRefusal::Forbidden => Self::Forbidden,
        }
    }
}

impl From<RemoteAccessError> for Refusal {
    fn from(_: RemoteAccessError) -> Self {
        Self::Drop(DropReason::Access)
    }
}
