//! Posts a read or write and executes it in the peer's memory at once, if the queue pair has nothing else to send.
//!
//! The result is the same as when the request is queued first and then executed ([`direct`](super::direct)), which all
//! other cases do.

#![allow(unsafe_code, reason = "copies between registered memory")]

use portolan_provider::verbs::{QpType, SendWr};

use crate::engine::{DirectOperation, PlannedDirect};
use crate::io::host::Host;
use crate::io::host::direct::{CHUNK, right_of};
use crate::io::host::memory_access;
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::net::shm::peer_rights::Wanted;

impl Host {
    /// Posts a read or write and executes it. Returns false, and posts nothing, if the queue pair has something else to
    /// send, if the peer's memory is not open to the request, or if the request is an error.
    #[inline(never)]
    pub(crate) fn post_direct(&self, qp: &QpCore, state: &mut LockedQp, wr: &SendWr<'_>) -> bool {
        let is_possible = qp.qp_type == QpType::Rc
            && wr.ud.is_none()
            && !(state.owes || state.deferred || state.by_packets || state.pulled.is_some())
            && !self.monitor.tap.is_plugged();
        if !is_possible {
            return false;
        }
        let Some(planned) = self.execute_planned(state, wr) else {
            return false;
        };
        state.engine.post_direct(wr, &planned);
        self.monitor.counters.carried_out_in_memory.up();
        self.report_completions(qp, state);
        true
    }

    #[inline(always)]
    fn execute_planned(&self, state: &LockedQp, wr: &SendWr<'_>) -> Option<PlannedDirect> {
        let peer = state.link.as_ref()?.peer_memory()?;
        let memory = self.memory.read();
        let planned = state.engine.plan_direct(&memory, wr)?;
        let len = planned.local.len;
        if len > CHUNK {
            return None;
        }
        let wanted = Wanted {
            qpn: state.peer_qpn,
            peer: state.engine.qpn(),
            tag: state.peer_tag,
            right: right_of(planned.operation),
            rkey: planned.rkey,
            addr: planned.addr,
            len,
        };
        let passage = peer.enter(&wanted).ok()?;
        let (local, remote) = (planned.local.addr, passage.addr());
        let (from, to) = match planned.operation {
            DirectOperation::Read => (remote, local),
            _ => (local, remote),
        };
        // SAFETY: the engine checked this side's memory against the table, which has been locked since. The peer's memory is
        // mapped, and the right is announced while `passage` exists.
        unsafe { memory_access::copy(from, to, len as usize) };
        Some(planned)
    }
}
