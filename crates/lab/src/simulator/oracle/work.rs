//! Work requests and their completions.

use std::ops::Range;

use portolan_provider::verbs::{QpState, WcOpcode, WcStatus, WorkCompletion};

use super::place::{Cursor, Target};
use super::{EndpointIndex, Oracle};
use crate::simulator::content::Content;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::plan::{Flaw, Kind, OpPlan};

/// A posted send request.
#[derive(Debug)]
pub(in crate::simulator) struct Posted {
    pub(in crate::simulator) wr_id: u64,
    pub(in crate::simulator) plan: OpPlan,
    pub(in crate::simulator) is_signaled: bool,
    pub(in crate::simulator) content: Content,
    /// Local memory: the source, or the target of a read.
    pub(in crate::simulator) local: Target,
    /// The peer's memory that it writes.
    pub(in crate::simulator) remote: Option<Target>,
    pub(in crate::simulator) status: Option<WcStatus>,
    /// Its first packet and the one after its last, counted from the connection's first.
    pub(in crate::simulator) packets: Range<u32>,
}

impl Posted {
    /// The cursor after this message, given `cursor` at the message's end.
    pub(super) fn pass(&self, cursor: Cursor) -> Cursor {
        Cursor {
            message: cursor.message + 1,
            offset: 0,
            receives: cursor.receives + usize::from(self.plan.takes_receive()),
        }
    }

    pub(in crate::simulator) fn len(&self) -> u64 {
        self.plan.len.into()
    }

    pub(super) fn is_read(&self) -> bool {
        self.plan.kind == Kind::Read
    }
}

/// A posted receive request.
#[derive(Debug)]
pub(in crate::simulator) struct Receive {
    pub(in crate::simulator) wr_id: u64,
    pub(in crate::simulator) target: Target,
    pub(in crate::simulator) status: Option<WcStatus>,
}

/// State of the queue pair when it produced a completion.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulator) struct Circumstances {
    pub(in crate::simulator) state: QpState,
    /// The connection's RNR retry count; 7 means unlimited.
    pub(in crate::simulator) rnr_retry_count: u8,
}

impl Oracle {
    /// A completion of a send request.
    pub(in crate::simulator) fn send_completed(
        &mut self,
        index: EndpointIndex,
        wc: &WorkCompletion,
        circumstances: Circumstances,
    ) -> Result<(), Violation> {
        let endpoint = &self.endpoints[index];
        let first = endpoint.sends_done;
        let found = endpoint.sends[first..]
            .iter()
            .position(|posted| posted.wr_id == wc.wr_id);
        let at = first
            + found.ok_or_else(|| {
                violation!(
                    "endpoint {index}: send {} completed twice, or was never posted",
                    wc.wr_id
                )
            })?;
        for passed in first..at {
            let posted = &self.endpoints[index].sends[passed];
            ensure!(
                !posted.is_signaled,
                "endpoint {index}: request {at} completed ({}) before request {passed}",
                wc.status
            );
            self.check_success(index, passed)?;
        }
        match wc.status {
            WcStatus::Success => {
                let is_signaled = self.endpoints[index].sends[at].is_signaled;
                ensure!(
                    is_signaled,
                    "endpoint {index}: request {at} completed, but is unsignaled"
                );
                self.check_success(index, at)?;
                self.check_send_wc(index, at, wc)?;
            }
            status => self.check_send_error(index, at, status, circumstances)?,
        }
        let endpoint = &mut self.endpoints[index];
        for posted in &mut endpoint.sends[first..at] {
            posted.status = Some(WcStatus::Success);
        }
        endpoint.sends[at].status = Some(wc.status);
        endpoint.sends_done = at + 1;
        Ok(())
    }

    /// A request that succeeded must have arrived.
    fn check_success(&self, index: EndpointIndex, at: usize) -> Result<(), Violation> {
        let posted = &self.endpoints[index].sends[at];
        ensure!(
            posted.plan.flaw.is_none(),
            "endpoint {index}: request {at} succeeded in spite of {:?}",
            posted.plan.flaw
        );
        ensure!(
            self.has_arrived(index, at),
            "endpoint {index}: request {at} ({:?}, {} bytes) succeeded, but did not arrive",
            posted.plan.kind,
            posted.plan.len
        );
        Ok(())
    }

    fn check_send_wc(
        &self,
        index: EndpointIndex,
        at: usize,
        wc: &WorkCompletion,
    ) -> Result<(), Violation> {
        let endpoint = &self.endpoints[index];
        let posted = &endpoint.sends[at];
        let (opcode, byte_len) = match posted.plan.kind {
            Kind::Send => (WcOpcode::Send, 0),
            Kind::Write => (WcOpcode::RdmaWrite, 0),
            Kind::Read => (WcOpcode::RdmaRead, posted.plan.len),
        };
        ensure!(
            (wc.opcode, wc.byte_len, wc.qp_num) == (opcode, byte_len, endpoint.qpn),
            "endpoint {index}: the completion of request {at} is another's: {wc:?}"
        );
        Ok(())
    }

    /// A failure must have a cause.
    fn check_send_error(
        &self,
        index: EndpointIndex,
        at: usize,
        status: WcStatus,
        circumstances: Circumstances,
    ) -> Result<(), Violation> {
        let endpoint = &self.endpoints[index];
        let plan = endpoint.sends[at].plan;
        let (own, peers) = (&endpoint.arenas, self.peer(index).map(|peer| &peer.arenas));
        let (own_is_gone, peers_is_gone) = match plan.kind {
            Kind::Send => (
                own.outgoing.is_revoked,
                peers.map(|peers| peers.incoming.is_revoked),
            ),
            Kind::Write => (
                own.outgoing.is_revoked,
                peers.map(|peers| peers.target.is_revoked),
            ),
            Kind::Read => (
                own.incoming.is_revoked,
                peers.map(|peers| peers.source.is_revoked),
            ),
        };
        let peers_is_gone = peers_is_gone == Some(true);
        // Another endpoint reuses the number, without the keys and receives of the first.
        let has_heir = self.receivers(index).count() > 1;
        let has_cause = match status {
            WcStatus::WrFlushErr | WcStatus::RetryExcErr => true,
            WcStatus::RnrRetryExcErr => circumstances.rnr_retry_count != 7,
            WcStatus::LocProtErr => plan.flaw == Some(Flaw::LocalKey) || own_is_gone,
            WcStatus::RemInvReqErr => plan.flaw == Some(Flaw::TooLong),
            WcStatus::RemAccessErr => {
                let refused = [Flaw::RemoteKey, Flaw::RemoteRange, Flaw::RemoteRight];
                plan.flaw.is_some_and(|flaw| refused.contains(&flaw))
                    || (peers_is_gone && plan.kind != Kind::Send)
            }
            WcStatus::RemOpErr => peers_is_gone && plan.kind == Kind::Send,
            _ => false,
        };
        let is_remote = matches!(
            status,
            WcStatus::RemInvReqErr | WcStatus::RemAccessErr | WcStatus::RemOpErr
        );
        ensure!(
            has_cause || (is_remote && has_heir),
            "endpoint {index}: request {at} failed without a cause: {status}"
        );
        ensure!(
            circumstances.state == QpState::Err,
            "endpoint {index}: request {at} failed ({status}) in {}",
            circumstances.state
        );
        Ok(())
    }

    /// A completion of a receive. Its bytes must be in place; `read` reads memory.
    pub(in crate::simulator) fn receive_completed<'a>(
        &mut self,
        index: EndpointIndex,
        wc: &WorkCompletion,
        is_solicited: bool,
        state: QpState,
        read: impl Fn(u64, usize) -> Result<&'a [u8], Violation>,
    ) -> Result<(), Violation> {
        let endpoint = &self.endpoints[index];
        let at = endpoint.receives_done;
        let receive = endpoint
            .receives
            .get(at)
            .filter(|receive| receive.wr_id == wc.wr_id);
        let receive = receive.ok_or_else(|| {
            violation!(
                "endpoint {index}: receive {} completed out of order or twice",
                wc.wr_id
            )
        })?;
        if wc.status == WcStatus::Success {
            self.check_received(index, at, receive, wc, is_solicited, read)?;
        } else {
            let has_cause = match wc.status {
                WcStatus::WrFlushErr | WcStatus::LocLenErr => true,
                WcStatus::LocProtErr => endpoint.arenas.incoming.is_revoked,
                _ => false,
            };
            ensure!(
                has_cause,
                "endpoint {index}: receive {at} failed without a cause: {}",
                wc.status
            );
            ensure!(
                state == QpState::Err,
                "endpoint {index}: receive {at} failed ({}) in {state}",
                wc.status
            );
        }
        let endpoint = &mut self.endpoints[index];
        endpoint.receives[at].status = Some(wc.status);
        endpoint.receives_done = at + 1;
        Ok(())
    }

    /// Receive `at` must hold the whole next message.
    fn check_received<'a>(
        &self,
        index: EndpointIndex,
        at: usize,
        receive: &Receive,
        wc: &WorkCompletion,
        is_solicited: bool,
        read: impl Fn(u64, usize) -> Result<&'a [u8], Violation>,
    ) -> Result<(), Violation> {
        let peer = self.peer(index);
        let peer =
            peer.ok_or_else(|| violation!("endpoint {index} completed a receive but has no peer"))?;
        let mut messages = peer.sends.iter().enumerate();
        let message = messages
            .by_ref()
            .filter(|(_, posted)| posted.plan.takes_receive())
            .nth(at);
        let (number, message) = message.ok_or_else(|| {
            violation!("endpoint {index}: receive {at} completed, but nothing was sent for it")
        })?;
        let what = |why: &str| {
            violation!(
                "endpoint {index}: receive {at}, message {number} of {}: {why}",
                peer.index
            )
        };
        let opcode = match message.plan.kind {
            Kind::Send => WcOpcode::Recv,
            _ => WcOpcode::RecvRdmaWithImm,
        };
        let is_right = wc.opcode == opcode
            && u64::from(wc.byte_len) == message.len()
            && wc.imm_data == message.plan.immediate
            && wc.qp_num == self.endpoints[index].qpn
            && is_solicited == message.plan.is_solicited;
        ensure!(
            is_right,
            "{}",
            what(&format!("the completion does not fit: {wc:?}"))
        );
        let target = match message.plan.kind {
            Kind::Send => Some(&receive.target),
            _ => message.remote.as_ref(),
        };
        let (mut offset, pieces) = (0, target.map_or(&[][..], Target::pieces));
        for (addr, len) in pieces {
            let len = u64::from(*len).min(message.len() - offset);
            let bytes = read(*addr, len as usize)?;
            ensure!(
                message.content.matches(offset, bytes),
                "{}",
                what("completed before its bytes were there")
            );
            offset += len;
        }
        ensure!(
            offset == message.len(),
            "{}",
            what("no room was granted for all of it")
        );
        Ok(())
    }

    /// In ERR all work is flushed at once.
    pub(in crate::simulator) fn check_flushed(
        &self,
        index: EndpointIndex,
    ) -> Result<(), Violation> {
        let endpoint = &self.endpoints[index];
        let sends = endpoint.sends.len() - endpoint.sends_done;
        let receives = endpoint.receives.len() - endpoint.receives_done;
        // Unsignaled requests that succeeded before the first failure give no completion.
        let silent = endpoint.sends[endpoint.sends_done..]
            .iter()
            .enumerate()
            .all(|(at, posted)| {
                !posted.is_signaled && self.has_arrived(index, endpoint.sends_done + at)
            });
        ensure!(
            (sends == 0 || silent) && receives == 0,
            "endpoint {index} is in ERR, but {sends} sends and {receives} receives did not complete"
        );
        Ok(())
    }
}
