//! Writes with immediate data whose bytes are in place: only their records arrive.
//!
//! The effect is that of [`handle_request`](Responder::handle_request) for the packets of the write, in all cases.

use core::cmp::Ordering;
use core::time::Duration;

use portolan_provider::verbs::{Access, WcOpcode, WcStatus, WorkCompletion};

use super::execute::check_right;
use super::{CREDITS_UNLIMITED, Fault, Inbound, Refused, Responder, Syndrome, packets_of};
use crate::engine::CompactWrite;
use crate::engine::qp::context::{Context, distance};
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::receive_queue::receive_completion;

/// The longest delay of an acknowledgement that may wait for a request of this side.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(1);

impl Responder {
    pub(in crate::engine::qp) fn take_write(
        &mut self,
        cx: &Context<'_>,
        write: &CompactWrite,
        out: &mut Outbox,
    ) -> Result<(), Refused> {
        match distance(write.psn, self.expected).cmp(&0) {
            Ordering::Greater => {
                self.on_gap(out);
                return Ok(());
            }
            Ordering::Less => {
                out.counters.duplicates += 1;
                let end = self.resources.first_after(write.psn, self.expected);
                let credits = CREDITS_UNLIMITED;
                let last = end.unwrap_or(self.expected).sub(1);
                self.acknowledge(last, Syndrome::Ack { credits });
                return Ok(());
            }
            Ordering::Equal => {}
        }
        self.awaits_expected = false;
        let allowed = match (self.inbound, write.len) {
            (Inbound::Idle, 0) => Ok(()),
            (Inbound::Idle, _) => check_right(cx, Access::REMOTE_WRITE),
            _ => Err(Fault::INVALID_REQUEST),
        };
        allowed.map_err(|fault| self.refuse(cx, write.psn, fault, None, out))?;
        if self.check_receive(cx, out).is_err() {
            return Ok(());
        }
        if let Some(wr_id) = self.queue.pop_front() {
            let wc = WorkCompletion {
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: write.len,
                imm_data: Some(u32::from_ne_bytes(write.immediate)),
                ..receive_completion(wr_id, WcStatus::Success, cx.qpn)
            };
            out.complete_receive(wc, write.solicited);
        }
        self.complete_message();
        self.expected = self.expected.add(packets_of(write.len, cx.mtu()) - 1);
        self.accept(cx, write.ack_request);
        if self.unacknowledged > 0 {
            self.acknowledge_at
                .get_or_insert(cx.now + ACKNOWLEDGE_WITHIN);
        }
        Ok(())
    }

    /// When the delayed acknowledgement is due.
    pub(in crate::engine::qp) fn next_timeout(&self) -> Option<Duration> {
        self.acknowledge_at
    }

    /// Sends the delayed acknowledgement if it is due at `now`; without a time, at once.
    #[inline]
    pub(in crate::engine::qp) fn send_delayed(&mut self, now: Option<Duration>) {
        let is_due = |at: Duration| now.is_none_or(|now| at <= now);
        if self.acknowledge_at.is_some_and(is_due) {
            let credits = CREDITS_UNLIMITED;
            self.acknowledge(self.expected.sub(1), Syndrome::Ack { credits });
        }
    }
}
