//! The shared receive queue named by an XRC request (IBTA annex A14).

use alloc::sync::Arc;

use portolan_provider::verbs::Srqn;
use portolan_wire::rocev2::Packet;

use super::{Fault, Responder};
use crate::engine::qp::outbox::Outbox;
use crate::engine::{PdId, Queue, ReceiveSource};

impl Responder {
    /// Switches to the queue named by a packet, which is next in sequence, and returns the queue's protection domain.
    /// `None` if the connection is not XRC.
    pub(super) fn enter_queue(
        &mut self,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<Option<PdId>, Fault> {
        if self.domain.is_none() {
            return Ok(None);
        }
        let named = srqn_of(packet);
        if packet.bth().opcode.starts_message() {
            let source = self.source_of(packet).ok_or(Fault::INVALID_REQUEST)?;
            self.queue.share(source);
            self.srqn = named;
            out.receives = named.map_or(Queue::Receive, Queue::Shared);
        } else if named != self.srqn {
            // All packets of a message must name the same queue.
            return Err(Fault::INVALID_REQUEST);
        }
        Ok(self.queue.pd())
    }

    /// The queue that a packet names.
    pub(super) fn source_of(&self, packet: &Packet<'_>) -> Option<Arc<dyn ReceiveSource>> {
        self.domain.as_ref()?.find(srqn_of(packet)?)
    }
}

fn srqn_of(packet: &Packet<'_>) -> Option<Srqn> {
    packet.xrceth().map(|xrceth| Srqn(xrceth.srqn))
}
