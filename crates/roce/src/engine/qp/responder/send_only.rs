//! Whole sends that need no packet.
//!
//! The effect is that of [`handle_request`](Responder::handle_request) for the packet. That handles every other case.

use portolan_provider::verbs::{WcStatus, WorkCompletion};

use super::{Inbound, Responder};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::receive_queue::receive_completion;
use crate::engine::{CompactSend, Segment};

impl Responder {
    /// Executes a send if it is next, a receive is posted, and its first element has room for it. Returns the memory
    /// for its bytes. `None` changes nothing.
    #[inline]
    pub(in crate::engine::qp) fn take_send(
        &mut self,
        cx: &Context<'_>,
        send: &CompactSend,
        out: &mut Outbox,
    ) -> Option<Segment> {
        let is_next = send.psn == self.expected || is_planted(Mutant::CompactSendOutOfOrder);
        if !is_next || !matches!(self.inbound, Inbound::Idle) || send.len > cx.mtu() {
            return None;
        }
        let pd = self.queue.pd().unwrap_or(cx.pd);
        let receive = self.queue.front()?;
        let addr = match (send.len, receive.sges.first()) {
            (0, _) => 0,
            (len, Some(sge)) if len <= sge.length => {
                let local = cx.memory.check_local(pd, sge.lkey, sge.addr, len, true);
                local.ok()?
            }
            _ => return None,
        };
        let wr_id = self.queue.pop_front()?;
        let wc = WorkCompletion {
            byte_len: send.len,
            imm_data: send.immediate.map(u32::from_ne_bytes),
            ..receive_completion(wr_id, WcStatus::Success, cx.qpn)
        };
        out.complete_receive(wc, send.solicited);
        self.awaits_expected = false;
        self.complete_message();
        self.accept(
            cx,
            send.ack_request && !is_planted(Mutant::CompactSendUnacknowledged),
        );
        Some(Segment {
            addr,
            len: send.len,
        })
    }
}
