//! Sends that invalidate a key (IBTA 9.4.1.1).

use portolan_provider::verbs::WcStatus;
use portolan_wire::eth::NakCode;
use portolan_wire::rocev2::Packet;

use super::{Fault, Responder};
use crate::engine::qp::context::Context;
use crate::engine::{MemoryOperation, WindowChange};

impl Responder {
    /// The operation that the host must execute before the receive completes, if a send invalidates a key and may do
    /// so.
    pub(super) fn check_invalidate(
        cx: &Context<'_>,
        packet: &Packet<'_>,
    ) -> Result<Option<MemoryOperation>, Fault> {
        let Some(ieth) = packet.ieth() else {
            return Ok(None);
        };
        let allowed = cx.memory.check_invalidate(cx.pd, cx.qpn, ieth.rkey);
        allowed.map_err(|_| Fault {
            nak: NakCode::RemoteAccessError,
            // As Linux's rdma_rxe (RESPST_ERR_INVALIDATE_RKEY).
            receive_status: Some(WcStatus::RemInvReqErr),
        })?;
        Ok(Some(MemoryOperation {
            pd: cx.pd,
            qpn: cx.qpn,
            rkey: ieth.rkey,
            change: WindowChange::Invalidate,
        }))
    }

    /// The operation that the host must execute.
    pub(in crate::engine::qp) fn pending_invalidate(&self) -> Option<MemoryOperation> {
        self.pending_invalidate
    }

    /// The host has executed it. If the window was deallocated after the check, its key is invalid as well.
    pub(in crate::engine::qp) fn complete_invalidate(&mut self) {
        self.pending_invalidate = None;
    }
}
