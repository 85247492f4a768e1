//! Incoming messages: parses them, finds their id and dispatches them.

use core::time::Duration;

use portolan_provider::cm::IdNumber;
use portolan_wire::cm::{AttributeId, CmMessage, MraMessage, MraRepr};
use portolan_wire::mad::{MadPacket, MgmtClass};

use crate::config::time_of_exponent;
use crate::counters::DropReason;
use crate::engine::Cm;
use crate::mutant::{Mutant, is_planted};
use crate::state::{Event, State};
use crate::types::MadPath;

impl Cm {
    /// Handles a management datagram that arrived at queue pair 1. No input can break the engine: it counts and drops a
    /// message that is malformed, unexpected or not from the id's peer.
    pub fn handle_mad(&mut self, now: Duration, path: &MadPath, mad: &[u8]) {
        let (header, message) = match CmMessage::parse(mad) {
            Ok(parsed) => parsed,
            Err(_) => return self.counters.drop(unparsed_reason(mad)),
        };
        self.counters.received[message.attribute_id()] += 1;
        self.pace.refresh(now);
        if let Some(reason) = self.full() {
            return self.counters.drop(reason);
        }
        let tid = header.tid;
        let path = &canonical(path);
        match &message {
            CmMessage::Req(req) => self.req_received(now, path, tid, req),
            CmMessage::Mra(mra) => self.mra_received(now, path, mra),
            CmMessage::Rej(rej) => self.rej_received(now, path, rej),
            CmMessage::Rep(rep) => self.rep_received(now, path, tid, rep),
            CmMessage::Rtu(rtu) => self.rtu_received(now, path, tid, rtu),
            CmMessage::Dreq(dreq) => self.dreq_received(now, path, tid, dreq),
            CmMessage::Drep(drep) => self.drep_received(now, path, drep),
            CmMessage::SidrReq(req) => self.sidr_req_received(now, path, tid, req),
            CmMessage::SidrRep(rep) => self.sidr_rep_received(now, path, rep),
            CmMessage::Lap(_) | CmMessage::Apr(_) => self.counters.drop(DropReason::Unsupported),
        }
    }

    /// MRA (`cm_mra_handler`): the peer received our message and needs more time.
    fn mra_received(&mut self, now: Duration, path: &MadPath, mra: &MraRepr) {
        let found = match mra.message {
            MraMessage::Req => self.find_unanswered(mra.remote_comm_id, path),
            MraMessage::Rep => self.find_both(mra.remote_comm_id, mra.local_comm_id, path),
            MraMessage::Lap | MraMessage::Reserved => None,
        };
        let Some(number) = found else {
            return self.drop_unknown();
        };
        let Some(state) = self.ids.get(number).map(|id| id.state) else {
            return;
        };
        if matches!(state, State::MraReqRcvd | State::MraRepRcvd) {
            self.counters.duplicates[AttributeId::Mra] += 1;
        }
        if !self.advance(now, number, Event::MraReceived) {
            return;
        }
        let grant = self.config.longest_grant_exp;
        let connection = self
            .ids
            .get_mut(number)
            .and_then(|id| id.connection.as_mut());
        let Some(request) = connection.and_then(|connection| connection.request.as_mut()) else {
            return;
        };
        if is_planted(Mutant::GrantIgnored) {
            return;
        }
        request.postpone(time_of_exponent(mra.service_timeout.min(grant)));
        let due_at = request.due_at();
        self.set_deadline(number, Some(due_at));
    }

    /// The id with our communication id `local`, if `path` is to its peer.
    pub(crate) fn find(&self, local: u32, path: &MadPath) -> Option<IdNumber> {
        let (number, _, connection) = self.ids.by_comm_id(local)?;
        connection.is_on(path).then_some(number)
    }

    /// The id with both communication ids (`cm_acquire_id`).
    pub(crate) fn find_both(&self, local: u32, remote: u32, path: &MadPath) -> Option<IdNumber> {
        let (number, _, connection) = self.ids.by_comm_id(local)?;
        let matches = connection.is_on(path) && connection.remote_comm_id == Some(remote);
        matches.then_some(number)
    }

    /// The id whose REQ was not answered yet.
    pub(crate) fn find_unanswered(&self, local: u32, path: &MadPath) -> Option<IdNumber> {
        let (number, _, connection) = self.ids.by_comm_id(local)?;
        (connection.is_on(path) && connection.remote_comm_id.is_none()).then_some(number)
    }

    pub(crate) fn drop_unknown(&mut self) {
        self.counters.drop(DropReason::UnknownId);
    }

    pub(crate) fn drop_unexpected(&mut self) {
        self.counters.drop(DropReason::Unexpected);
    }

    pub(crate) fn drop_mismatch(&mut self) {
        self.counters.drop(DropReason::Mismatch);
    }

    pub(crate) fn drop_malformed(&mut self) {
        self.counters.drop(DropReason::Malformed);
    }
}

/// Why a datagram could not be parsed: another class or version, or malformed.
fn unparsed_reason(mad: &[u8]) -> DropReason {
    match MadPacket::new_checked(mad) {
        Ok(packet) if packet.header().mgmt_class == MgmtClass::CM => DropReason::Unsupported,
        _ => DropReason::Malformed,
    }
}

/// The path with IPv4-mapped addresses, which dual-stack sockets report, converted to IPv4.
fn canonical(path: &MadPath) -> MadPath {
    MadPath {
        local: path.local.to_canonical(),
        remote: path.remote.to_canonical(),
        ..*path
    }
}
