//! Local work, which sends nothing: binding and invalidating memory windows.
//!
//! It has no packet number. The host executes it when it is next to be sent, and it completes in posting order like
//! other work.

use portolan_provider::verbs::{SendOp, WcStatus};
use portolan_wire::Qpn;

use super::{Broken, Requester, SendEntry};
use crate::engine::qp::context::Context;
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{MemoryOperation, WindowChange, WindowError};

impl Requester {
    /// Skips local work that was executed before the sender went back.
    pub(super) fn skip_done(&mut self) {
        while self.queue.get(self.entry).is_some_and(SendEntry::is_done) {
            self.next_entry();
        }
    }

    /// Passes local work to the host. If it failed there, fails once all earlier work is complete.
    pub(super) fn begin_local(&mut self, cx: &Context<'_>, out: &mut Outbox) -> Result<(), Broken> {
        let Some(entry) = self.queue.get(self.entry) else {
            return Ok(());
        };
        if let Some(Err(status)) = entry.outcome {
            if self.next > self.una || self.entry > 0 {
                return Ok(());
            }
            self.complete_front(status, cx.qpn, out);
            return Err(Broken);
        }
        self.pending_local = operation_of(cx, &entry.op);
        Ok(())
    }

    /// The operation passed to the host, until its result is known.
    pub(in crate::engine::qp) fn pending_local(&self) -> Option<MemoryOperation> {
        self.pending_local
    }

    /// The host has executed it, or failed to.
    pub(in crate::engine::qp) fn complete_local(
        &mut self,
        outcome: Result<(), WindowError>,
        qpn: Qpn,
        out: &mut Outbox,
    ) {
        self.pending_local = None;
        let Some(entry) = self.queue.get_mut(self.entry) else {
            return;
        };
        entry.outcome = Some(outcome.map_err(|_| match entry.op {
            SendOp::BindMw { .. } => WcStatus::MwBindErr,
            _ => WcStatus::LocQpOpErr,
        }));
        if outcome.is_ok() {
            self.next_entry();
            self.complete_finished(qpn, out);
        }
    }

    fn next_entry(&mut self) {
        self.entry += 1;
        self.gather = SgeCursor::default();
    }
}

fn operation_of(cx: &Context<'_>, op: &SendOp) -> Option<MemoryOperation> {
    let (rkey, change) = match *op {
        SendOp::BindMw {
            rkey,
            new_rkey,
            bind,
        } => (rkey, WindowChange::Bind { new_rkey, bind }),
        SendOp::LocalInv(rkey) => (rkey, WindowChange::Invalidate),
        _ => return None,
    };
    Some(MemoryOperation {
        pd: cx.pd,
        qpn: cx.qpn,
        rkey,
        change,
    })
}
