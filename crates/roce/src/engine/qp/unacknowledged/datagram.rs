//! Receiving datagrams (IBTA 9.8.3).

use portolan_provider::verbs::{NetworkHeader, WcOpcode, WcStatus, WorkCompletion};
use portolan_wire::eth::GrhRepr;
use portolan_wire::rocev2::Packet;

use super::{ReceiveFailed, Receiver};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::receive_queue::receive_completion;
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{DropReason, PlacementSource};

/// Space for the header before the data in a datagram's receive buffer (IBTA 11.4.1.2).
const GRH_LEN: usize = GrhRepr::LEN;

impl Receiver {
    /// Handles a datagram: it fills the oldest receive, after the space for its network header. Without a receive it is
    /// lost.
    pub(super) fn take_datagram(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), ReceiveFailed> {
        // The opcode has a DETH, because the transport was already checked.
        let Some(deth) = packet.deth() else {
            out.counters.count_drop(DropReason::Malformed);
            return Ok(());
        };
        if deth.qkey != cx.attr.qkey && !is_planted(Mutant::QKeyUnchecked) {
            out.counters.count_drop(DropReason::QKey);
            return Ok(());
        }
        let pd = self.queue.pd().unwrap_or(cx.pd);
        let memory_cx = Context { pd, ..*cx };
        let Some(receive) = self.queue.front() else {
            out.counters.count_drop(DropReason::NoReceive);
            return Ok(());
        };
        let payload = packet.payload().len();
        let total = GRH_LEN + payload;
        if total as u64 > receive.capacity {
            self.end_short_receive(cx, out);
            return Ok(());
        }
        let mut cursor = SgeCursor::default();
        // The separate queue marks it as a header's placement, so the source is not used.
        let source = PlacementSource::Payload;
        let header = cursor.scatter(&receive.sges, 0, source, GRH_LEN, &memory_cx, out);
        // The queue is empty, because placements are taken after each packet.
        core::mem::swap(&mut out.placements, &mut out.grh_placements);
        let at = match is_planted(Mutant::HeaderRoomTaken) {
            true => 0,
            false => GRH_LEN as u64,
        };
        let body = cursor.scatter(&receive.sges, at, source, payload, &memory_cx, out);
        if header.is_err() || body.is_err() {
            out.grh_placements.clear();
            return Err(self.end_forbidden_receive(cx, out));
        }
        let Some(wr_id) = self.queue.pop_front() else {
            return Ok(());
        };
        let wc = WorkCompletion {
            opcode: WcOpcode::Recv,
            // The length of a UDP payload has 16 bits.
            byte_len: total as u32,
            imm_data: packet.immdt().map(|immdt| u32::from_ne_bytes(immdt.0)),
            src_qp: deth.src_qp,
            has_grh: true,
            sl: cx.network.map_or(0, NetworkHeader::service_level),
            ..receive_completion(wr_id, WcStatus::Success, cx.qpn)
        };
        out.complete_receive(wc, packet.bth().solicited);
        Ok(())
    }
}
