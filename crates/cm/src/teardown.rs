//! The end of a connection: rejection, disconnection, destruction.

use alloc::boxed::Box;
use core::time::Duration;

use portolan_provider::cm::{ConnParam, Ece, EventParam, EventType, IdNumber};
use portolan_provider::error::errno::ETIMEDOUT;
use portolan_provider::error::{Error, Result, Step};
use portolan_wire::cm::{
    AdditionalInfo, AttributeId, DrepRepr, DreqRepr, PrivateData, RejMessage, RejRepr, RejectReason,
};
use portolan_wire::mad::MAD_LEN;

use crate::engine::Cm;
use crate::id::RemoteId;
use crate::mutant::{Mutant, is_planted};
use crate::state::{Event, State};
use crate::types::MadPath;

/// Bytes of private data that a rejection carries.
pub const REJ_PRIVATE_DATA_MAX: usize = PrivateData::<148>::LEN;

impl Cm {
    /// Rejects a connection request, or the reply to one's own (`rdma_reject`). No event follows. A SIDR request is
    /// answered with the status "rejected", whatever the reason.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`, `LimitReached`; `InvalidArgument` for private data of more than
    /// 148 bytes (datagrams: 136).
    pub fn reject(
        &mut self,
        now: Duration,
        id: IdNumber,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<()> {
        let step = Step::Reject;
        self.begin(now, step)?;
        let found = self.ids.find(id, step)?;
        let next = found.command(Event::Reject, step)?;
        if found.asked.is_some() {
            return self.reject_inquiry(now, id, next, private_data);
        }
        let private_data = PrivateData::from_slice(private_data).map_err(|_| {
            let expected = alloc::format!("at most {REJ_PRIVATE_DATA_MAX} bytes");
            let length = alloc::format!("{} bytes", private_data.len());
            found.locate(Error::invalid(step, "private data", expected, length))
        })?;
        self.request_taken(id);
        self.reject_and_keep(now, id, reason, private_data);
        self.enter(now, id, next);
        Ok(())
    }

    /// Disconnects (`rdma_disconnect`): sends DREQ, or answers the peer's by DREP. `Disconnected` follows unless
    /// already reported, and finally `TimewaitExit`. If there is nothing to disconnect, the call has no effect.
    ///
    /// # Errors
    /// `InvalidState` for an id that never connected; `NoSuchObject`, `LimitReached`.
    pub fn disconnect(&mut self, now: Duration, id: IdNumber) -> Result<()> {
        let step = Step::Disconnect;
        self.begin(now, step)?;
        let found = self.ids.find(id, step)?;
        let (state, next) = (found.state, found.command(Event::Disconnect, step)?);
        match (state, next) {
            (State::DreqRcvd, State::Timewait) => {
                self.send_drep(id);
                self.enter(now, id, next);
            }
            (State::Established, State::DreqSent) => self.begin_disconnect(now, id, next),
            _ => {}
        }
        Ok(())
    }

    /// Destroys an id (`rdma_destroy_id`). Its peer is sent what `ib_destroy_cm_id` sends: a rejection while
    /// connecting, one DREQ when connected, a DREP if one is due. Destroying a listener also destroys the children
    /// whose request events were not taken.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn destroy_id(&mut self, now: Duration, id: IdNumber) -> Result<()> {
        self.ids.find(id, Step::DestroyId)?;
        for child in self.unlisten(now, id) {
            self.take_leave(now, child);
        }
        self.take_leave(now, id);
        Ok(())
    }

    /// Sends the message that the state requires to the peer, and removes the id.
    fn take_leave(&mut self, now: Duration, number: IdNumber) {
        self.request_taken(number);
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let state = id.state;
        if state == State::AddrBound {
            self.listeners.no_longer_expect(now, id, number);
        }
        match state {
            State::ReqSent | State::MraReqRcvd => self.send_timeout_rej(number),
            State::RepSent | State::MraRepRcvd | State::ReqRcvd | State::RepRcvd => {
                let reason = RejectReason::CONSUMER_DEFINED;
                self.reject_and_keep(now, number, reason, PrivateData::EMPTY);
            }
            State::Established => self.send_dreq_once(number),
            State::DreqRcvd => self.send_drep(number),
            State::SidrReqRcvd => self.refuse_inquiry(number),
            State::Idle
            | State::AddrBound
            | State::Listen
            | State::AddrQuery
            | State::AddrResolved
            | State::RouteResolved
            | State::DreqSent
            | State::SidrReqSent
            | State::SidrResolved
            | State::SidrReplied
            | State::Timewait
            | State::Closed
            | State::DeviceRemoval => {}
        }
        self.forget_neighbour(number);
        self.remember(now, number);
        self.remember_answer(now, number);
        self.leave_all(number);
        self.end_half_open(number);
        self.set_deadline(number, None);
        self.ids.remove(number);
    }

    /// The peer has forgotten this connection: disconnects it if it is connected (`cm_match_req`).
    pub(crate) fn found_stale(&mut self, now: Duration, number: IdNumber) {
        let Some(state) = self.ids.get(number).map(|id| id.state) else {
            return;
        };
        if let Some(next) = state.after(Event::FoundStale) {
            self.begin_disconnect(now, number, next);
        }
    }

    /// REJ (`cm_rej_handler`).
    pub(crate) fn rej_received(&mut self, now: Duration, path: &MadPath, rej: &RejRepr) {
        let Some(number) = self.find_rejected(path, rej) else {
            self.forget_held(path.host(), rej.local_comm_id);
            return self.drop_unknown();
        };
        let event = match rej.reason {
            RejectReason::STALE_CONN => Event::RejStaleReceived,
            _ => Event::RejReceived,
        };
        let was_ending = self.state(number) == Ok(State::DreqSent);
        if !self.advance(now, number, event) {
            return;
        }
        if was_ending {
            // The peer's DREP was lost. The peer forgot the connection and then received a late copy of a message.
            return self.report_disconnected(number, 0);
        }
        let conn = ConnParam {
            private_data: Box::from(&rej.private_data[..]),
            ..ConnParam::default()
        };
        let status = i32::from(rej.reason.0);
        self.report(
            number,
            EventType::Rejected,
            status,
            EventParam::Conn(conn),
            Ece::default(),
        );
    }

    /// The id that a REJ is for (`cm_acquire_rejected_id`). The sender of a timeout may not know our communication id;
    /// it then identifies itself.
    fn find_rejected(&self, path: &MadPath, rej: &RejRepr) -> Option<IdNumber> {
        if rej.reason == RejectReason::TIMEOUT {
            let guid = rej.additional_info.as_slice().first_chunk().copied();
            let guid = guid.map_or(0, u64::from_be_bytes);
            let remote = RemoteId {
                guid,
                host: path.host(),
                comm_id: rej.local_comm_id,
            };
            if let Some(number) = self.ids.by_remote_id(&remote) {
                let connection = self.ids.get(number)?.connection.as_deref()?;
                return connection.is_on(path).then_some(number);
            }
        }
        let unanswered = self.find_unanswered(rej.remote_comm_id, path);
        match rej.message {
            RejMessage::Req => unanswered,
            // A passive side that gives up may know us although its replies to us were lost.
            _ => unanswered.or_else(|| self.find_both(rej.remote_comm_id, rej.local_comm_id, path)),
        }
    }

    /// DREQ (`cm_dreq_handler`).
    pub(crate) fn dreq_received(
        &mut self,
        now: Duration,
        path: &MadPath,
        tid: u64,
        dreq: &DreqRepr,
    ) {
        let Some(number) = self.find_both(dreq.remote_comm_id, dreq.local_comm_id, path) else {
            // Our side is already destroyed: answer, so that the peer stops (`cm_issue_drep`).
            self.drop_unknown();
            let drep = DrepRepr {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                ..DrepRepr::default()
            };
            return self.answer(path, tid, drep);
        };
        let Some(id) = self.ids.get_mut(number) else {
            return;
        };
        let Some(connection) = id.connection.as_deref_mut() else {
            return;
        };
        if connection.local_qpn != dreq.remote_qpn {
            return self.drop_mismatch();
        }
        connection.dreq_tid = tid;
        let state = id.state;
        if !self.advance(now, number, Event::DreqReceived) {
            return;
        }
        match state {
            // A copy; the owner has not answered yet.
            State::DreqRcvd => {
                self.counters.duplicates[AttributeId::Dreq] += 1;
                if is_planted(Mutant::DisconnectToldTwice) {
                    self.report_empty(number, EventType::Disconnected, 0);
                }
            }
            // A copy; our answer was lost.
            State::Timewait => {
                self.counters.duplicates[AttributeId::Dreq] += 1;
                self.send_drep(number);
            }
            // The owner already knows that the connection ended.
            State::Closed => self.send_drep(number),
            // Both sides disconnected at once.
            State::DreqSent => {
                self.send_drep(number);
                self.report_disconnected(number, 0);
            }
            _ => self.report_disconnected(number, 0),
        }
    }

    /// DREP (`cm_drep_handler`).
    pub(crate) fn drep_received(&mut self, now: Duration, path: &MadPath, drep: &DrepRepr) {
        let Some(number) = self.find_both(drep.remote_comm_id, drep.local_comm_id, path) else {
            return self.drop_unknown();
        };
        if self.advance(now, number, Event::DrepReceived) {
            self.report_disconnected(number, 0);
        }
    }

    /// The last retransmission got no answer (`cm_process_send_error`).
    pub(crate) fn unanswered(&mut self, now: Duration, number: IdNumber) {
        let Some(state) = self.ids.get(number).map(|id| id.state) else {
            return;
        };
        if state == State::DreqSent {
            self.advance(now, number, Event::Unanswered);
            return self.report_disconnected(number, -ETIMEDOUT);
        }
        if state == State::SidrReqSent {
            self.advance(now, number, Event::Unanswered);
            return self.report_bare(number, EventType::Unreachable, -ETIMEDOUT);
        }
        // Linux sends nothing to the peer here. The standard requires a message (IBTA 12.9), so that the peer does not
        // keep a half-open connection.
        self.send_timeout_rej(number);
        self.advance(now, number, Event::Unanswered);
        self.report_bare(number, EventType::Unreachable, -ETIMEDOUT);
    }

    /// Reports the end, once.
    pub(crate) fn report_disconnected(&mut self, number: IdNumber, status: i32) {
        let connection = self
            .ids
            .get_mut(number)
            .and_then(|id| id.connection.as_mut());
        let Some(connection) = connection else { return };
        if !core::mem::replace(&mut connection.disconnect_reported, true) {
            self.report_empty(number, EventType::Disconnected, status);
        }
    }

    fn begin_disconnect(&mut self, now: Duration, number: IdNumber, next: State) {
        let tid = self.random_tid();
        self.enter(now, number, next);
        if let Some(dreq) = self.dreq(number) {
            self.send_request(now, number, tid, dreq);
        }
    }

    fn send_dreq_once(&mut self, number: IdNumber) {
        let tid = self.random_tid();
        if let Some(dreq) = self.dreq(number) {
            self.send(number, |_| (tid, dreq.into()));
        }
    }

    fn dreq(&self, number: IdNumber) -> Option<DreqRepr> {
        let connection = self.ids.get(number)?.connection.as_deref()?;
        Some(DreqRepr {
            local_comm_id: connection.local_comm_id,
            remote_comm_id: connection.remote_comm_id?,
            remote_qpn: connection.remote_qpn,
            ..DreqRepr::default()
        })
    }

    fn send_drep(&mut self, number: IdNumber) {
        self.send(number, |connection| {
            let drep = DrepRepr {
                local_comm_id: connection.local_comm_id,
                remote_comm_id: connection.remote_comm_id.unwrap_or(0),
                ..DrepRepr::default()
            };
            (connection.dreq_tid, drep.into())
        });
    }

    /// Rejects with the reason "timeout", and with this side's GUID so that the peer finds its id.
    fn send_timeout_rej(&mut self, number: IdNumber) {
        let device = self.ids.get(number).and_then(|id| id.device);
        let guid = device.map_or(0, |device| device.node_guid).to_be_bytes();
        let info = AdditionalInfo::from_slice(&guid).unwrap_or_default();
        self.send_rej_with(number, RejectReason::TIMEOUT, info, PrivateData::EMPTY);
    }

    /// Rejects. If the REJ answers a REQ, keeps it for as long as the peer may send copies of the REQ, which get it again.
    /// (Linux keeps none: there a copy is a new request.)
    fn reject_and_keep(
        &mut self,
        now: Duration,
        number: IdNumber,
        reason: RejectReason,
        data: PrivateData<148>,
    ) {
        let Some(mad) = self.send_rej(number, reason, data) else {
            return;
        };
        let id = self.ids.get(number);
        let id = id.filter(|id| id.state == State::ReqRcvd);
        let Some((remote, rejection, repeats)) = id.and_then(|id| {
            let connection = id.connection.as_deref()?;
            let repeats = connection.repeating_time(&self.config);
            Some((connection.remote_id()?, id.rejection(mad)?, repeats))
        }) else {
            return;
        };
        if !is_planted(Mutant::RejectionForgotten) {
            let until = now.saturating_add(repeats);
            self.rejections
                .insert(now, remote, until, Box::new(rejection));
        }
    }

    pub(crate) fn send_rej(
        &mut self,
        number: IdNumber,
        reason: RejectReason,
        data: PrivateData<148>,
    ) -> Option<[u8; MAD_LEN]> {
        self.send_rej_with(number, reason, AdditionalInfo::EMPTY, data)
    }

    /// Rejects the message that was received, as the id's state implies (`cm_format_rej`).
    fn send_rej_with(
        &mut self,
        number: IdNumber,
        reason: RejectReason,
        additional_info: AdditionalInfo,
        private_data: PrivateData<148>,
    ) -> Option<[u8; MAD_LEN]> {
        let message = match self.ids.get(number).map(|id| id.state) {
            Some(State::ReqRcvd) => RejMessage::Req,
            Some(State::RepRcvd) => RejMessage::Rep,
            _ => RejMessage::Other,
        };
        self.send(number, |connection| {
            let rej = RejRepr {
                local_comm_id: connection.local_comm_id,
                remote_comm_id: connection.remote_comm_id.unwrap_or(0),
                message,
                reason,
                additional_info,
                private_data,
            };
            (connection.tid, rej.into())
        })
    }
}
