//! The active side: REQ out, REP in, RTU out.

use alloc::boxed::Box;
use core::net::SocketAddr;
use core::time::Duration;

use portolan_provider::cm::{ConnParam, Ece, EventParam, EventType, IdNumber, PathRecord};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::QpType;
use portolan_wire::cm::{
    EXTENDED_XRC, MraMessage, PathMtu, PathRepr, PrivateData, RejMessage, RejectReason, RepRepr,
    ReqRepr, RtuRepr, TransportService,
};
use portolan_wire::cma::CmaHeader;
use portolan_wire::{Psn, Qpn};

use crate::config::{ack_timeout_exp, time_of_exponent};
use crate::engine::Cm;
use crate::id::{Connection, RemoteId, RemoteQp};
use crate::infiniband::plain_private_data;
use crate::params::{check_ece, check_qpn, param_of_rep, retry_field};
use crate::state::{Event, State};
use crate::types::{BoundDevice, Lids, MadPath};

/// Bytes of private data that a REQ has for the user, after the IP addresses.
pub const REQ_PRIVATE_DATA_MAX: usize = PrivateData::<92>::LEN - CmaHeader::LEN;

/// LID of both ends of a routed path (`IB_LID_PERMISSIVE`).
const LID_PERMISSIVE: u16 = 0xFFFF;

impl Cm {
    /// Sends a connection request (`rdma_connect`). It ends in `ConnectResponse`, `Rejected` or
    /// `Unreachable`. An id for datagrams sends a SIDR REQ instead, and ends in `Established` or `Unreachable`. It uses
    /// only the private data of `param`.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`, `LimitReached`; `InvalidArgument` for private data of more than
    /// 56 bytes (datagrams: 180; with InfiniBand addresses 92 and 216) or an invalid queue pair number.
    pub fn connect(
        &mut self,
        now: Duration,
        id: IdNumber,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<()> {
        let step = Step::Connect;
        self.begin(now, step)?;
        let number = id;
        let id = self.ids.find(id, step)?;
        if id.service.qp_type == QpType::Ud {
            return self.inquire(now, number, &param.private_data);
        }
        if id.service.qp_type == QpType::XrcRecv {
            let (what, found) = ("queue pair type", id.service.qp_type);
            return Err(id.locate(Error::invalid(step, what, "a connected type", found)));
        }
        let next = id.command(Event::Connect, step)?;
        let route = (id.local, id.remote, id.device, id.path);
        let (Some(local), Some(remote), Some(device), Some(path)) = route else {
            let expected = "route resolved";
            return Err(id.fail(
                step,
                Cause::InvalidState {
                    expected,
                    found: id.state.name(),
                },
            ));
        };
        let (qp_type, psn, service_id) =
            (id.service.qp_type, id.starting_psn, id.service_id(&remote));
        let locate = |error| id.locate(error);
        check_qpn(step, param.qp_num).map_err(locate)?;
        let private_data = match id.ib_service {
            Some(_) => plain_private_data(&param.private_data),
            None => addressed_private_data(local, remote, &param.private_data),
        }
        .map_err(locate)?;
        let lids = id.lids;
        let ece = check_ece(step, ece).map_err(locate)?;

        let local_comm_id = self.draw_comm_id().ok_or_else(|| {
            let cause = Cause::LimitReached {
                what: "communication ids",
                limit: 1 << 24,
            };
            Error::new(step, cause)
        })?;
        let tid = self.random_tid();
        let (transport, extended_transport) = transport_of(qp_type);
        let req = ReqRepr {
            local_comm_id,
            ece,
            service_id,
            local_ca_guid: device.node_guid,
            local_qpn: param.qp_num,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            remote_cm_response_timeout: self.config.response_timeout_exp,
            transport,
            extended_transport,
            end_to_end_flow_control: param.flow_control,
            starting_psn: psn,
            local_cm_response_timeout: self.config.response_timeout_exp,
            retry_count: retry_field(param.retry_count),
            pkey: path.pkey,
            path_mtu: PathMtu(path.mtu as u8),
            rnr_retry_count: retry_field(param.rnr_retry_count),
            max_cm_retries: self.config.max_cm_retries,
            srq: param.srq,
            primary: primary_path(&path, &device, lids),
            private_data,
            ..ReqRepr::default()
        };
        let req = match qp_type {
            QpType::XrcSend => without_responder(req),
            _ => req,
        };
        let connection = Connection {
            waits_at: None,
            passive: false,
            was_put_off: false,
            mad_path: mad_path(local, remote, device, lids),
            local_comm_id,
            remote_comm_id: None,
            remote_guid: 0,
            tid,
            dreq_tid: 0,
            local_qpn: param.qp_num,
            remote_qpn: Qpn::new(0),
            remote_psn: Psn::new(0),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: retry_field(param.retry_count),
            rnr_retry_count: retry_field(param.rnr_retry_count),
            mtu: path.mtu,
            ack_timeout_exp: path.packet_lifetime.saturating_add(1),
            request_response_exp: self.config.response_timeout_exp,
            response_timeout: time_of_exponent(path.packet_lifetime) * 2
                + time_of_exponent(self.config.response_timeout_exp),
            max_retries: self.config.max_cm_retries,
            request: None,
            disconnect_reported: false,
        };
        if let Some(id) = self.ids.get_mut(number) {
            id.connection = Some(Box::new(connection));
        }
        self.ids.set_comm_id(local_comm_id, number);
        self.enter(now, number, next);
        self.send_request(now, number, tid, req);
        Ok(())
    }

    /// Completes the active side by hand (`rdma_establish`): sends the RTU. The queue pair must be ready to send. This
    /// side gets no event; the peer gets `Established`.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`, `LimitReached`.
    pub fn establish(&mut self, now: Duration, id: IdNumber) -> Result<()> {
        let step = Step::Accept;
        self.begin(now, step)?;
        let number = id;
        let next = self.ids.find(id, step)?.command(Event::Establish, step)?;
        self.enter(now, number, next);
        self.send_rtu(number);
        Ok(())
    }

    /// REP (`cm_rep_handler`).
    pub(crate) fn rep_received(&mut self, now: Duration, path: &MadPath, tid: u64, rep: &RepRepr) {
        let Some(number) = self.find(rep.remote_comm_id, path) else {
            self.drop_unknown();
            return self.refuse_rep(path, tid, rep, RejectReason::INVALID_COMM_ID);
        };
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let Some(connection) = id.connection.as_deref() else {
            return;
        };
        // An XRC receiving end puts its queue pair number into the field for the reliable datagram context.
        let rep = &match id.service.qp_type {
            QpType::XrcSend => RepRepr {
                local_qpn: Qpn::new(rep.local_eecn),
                ..*rep
            },
            _ => *rep,
        };
        match connection.remote_comm_id {
            Some(known) if known == rep.local_comm_id => {
                return self.rep_repeated(now, number, rep);
            }
            Some(_) => return self.drop_mismatch(),
            // No id answers such a REP, so tell the passive side instead of letting it time out.
            None if id.state == State::Closed => {
                self.drop_unexpected();
                return self.refuse_rep(path, tid, rep, RejectReason::INVALID_COMM_ID);
            }
            None => {}
        }
        if id.state.after(Event::RepReceived).is_none() {
            return self.drop_unexpected();
        }
        if rep.local_qpn.value() <= Qpn::GSI.value() {
            return self.drop_malformed();
        }
        let host = connection.mad_path.host();
        let remote = RemoteId {
            guid: rep.local_ca_guid,
            host,
            comm_id: rep.local_comm_id,
        };
        let qp = RemoteQp {
            guid: rep.local_ca_guid,
            host,
            qpn: rep.local_qpn,
        };
        if self.ids.by_remote_id(&remote).is_some() {
            return self.drop_mismatch();
        }
        if let Some(old) = self.ids.by_remote_qp(&qp) {
            self.advance(now, number, Event::RepStale);
            self.refuse_rep(path, tid, rep, RejectReason::STALE_CONN);
            return self.found_stale(now, old);
        }
        self.take_rep(now, number, rep);
        self.ids.set_remote(remote, qp, number);
        let (param, ece) = (EventParam::Conn(param_of_rep(rep)), rep.ece);
        self.report(number, EventType::ConnectResponse, 0, param, ece);
    }

    /// Stores the parameters of the REP.
    fn take_rep(&mut self, now: Duration, number: IdNumber, rep: &RepRepr) {
        if !self.advance(now, number, Event::RepReceived) {
            return;
        }
        let connection = self
            .ids
            .get_mut(number)
            .and_then(|id| id.connection.as_mut());
        let Some(connection) = connection else { return };
        connection.remote_comm_id = Some(rep.local_comm_id);
        connection.remote_guid = rep.local_ca_guid;
        connection.remote_qpn = rep.local_qpn;
        connection.remote_psn = rep.starting_psn;
        connection.responder_resources = rep.initiator_depth;
        connection.initiator_depth = rep.responder_resources;
        connection.rnr_retry_count = rep.rnr_retry_count;
        let lifetime_exp = connection.ack_timeout_exp.saturating_sub(1);
        connection.ack_timeout_exp = ack_timeout_exp(rep.target_ack_delay, lifetime_exp);
    }

    /// A copy of the REP (`cm_dup_rep_handler`): our RTU was lost or is not sent yet.
    fn rep_repeated(&mut self, now: Duration, number: IdNumber, rep: &RepRepr) {
        self.counters.duplicates[portolan_wire::cm::AttributeId::Rep] += 1;
        let same = self.ids.get(number).and_then(|id| id.connection.as_deref());
        if same.is_none_or(|connection| connection.remote_qpn != rep.local_qpn) {
            return self.drop_mismatch();
        }
        if !self.advance(now, number, Event::RepRepeated) {
            return;
        }
        match self.ids.get(number).map(|id| id.state) {
            Some(State::Established) => self.send_rtu(number),
            _ => self.send_mra(number, MraMessage::Rep),
        }
    }

    fn send_rtu(&mut self, number: IdNumber) {
        self.send(number, |connection| {
            let rtu = RtuRepr {
                local_comm_id: connection.local_comm_id,
                remote_comm_id: connection.remote_comm_id.unwrap_or(0),
                ..RtuRepr::default()
            };
            (connection.tid, rtu.into())
        });
    }

    /// Refuses a REP without an id (`cm_issue_rej`).
    fn refuse_rep(&mut self, path: &MadPath, tid: u64, rep: &RepRepr, reason: RejectReason) {
        let ids = (rep.remote_comm_id, rep.local_comm_id);
        self.refuse(path, tid, ids, RejMessage::Rep, reason, &[]);
    }
}

/// The private data of a REQ or SIDR REQ: the addresses, then the user's own.
pub(crate) fn addressed_private_data<const N: usize>(
    local: SocketAddr,
    remote: SocketAddr,
    data: &[u8],
) -> Result<PrivateData<N>> {
    let step = Step::Connect;
    let too_long = || {
        let expected = alloc::format!("at most {} bytes", N.saturating_sub(CmaHeader::LEN));
        Error::invalid(
            step,
            "private data",
            expected,
            alloc::format!("{} bytes", data.len()),
        )
    };
    let header = CmaHeader::new(local.ip(), local.port(), remote.ip()).ok_or_else(|| {
        Error::invalid(
            step,
            "destination",
            "an address of the source's family",
            remote.ip(),
        )
    })?;
    let mut area = [0; N];
    let at = header.emit(&mut area).map_err(|_| too_long())?;
    let room = area
        .get_mut(at..)
        .and_then(|room| room.get_mut(..data.len()));
    room.ok_or_else(too_long)?.copy_from_slice(data);
    Ok(PrivateData::new(area))
}

/// The path of a REQ (`cm_format_req`).
fn primary_path(path: &PathRecord, device: &BoundDevice, lids: Option<Lids>) -> PathRepr {
    let routed = path.hop_limit > 1;
    let lids = lids.unwrap_or_else(|| {
        let lid = if routed { LID_PERMISSIVE } else { 0 };
        Lids {
            local: lid,
            remote: lid,
        }
    });
    PathRepr {
        local_lid: lids.local,
        remote_lid: lids.remote,
        local_gid: path.sgid,
        remote_gid: path.dgid,
        flow_label: path.flow_label,
        packet_rate: path.rate,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        service_level: path.sl,
        subnet_local: !routed,
        local_ack_timeout: ack_timeout_exp(device.ack_delay_exp, path.packet_lifetime),
    }
}

pub(crate) fn mad_path(
    local: SocketAddr,
    remote: SocketAddr,
    device: BoundDevice,
    lids: Option<Lids>,
) -> MadPath {
    let scope_id = match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    };
    MadPath {
        local: local.ip(),
        remote: remote.ip(),
        scope_id,
        device,
        lids,
    }
}

/// The REQ's fields for a queue pair type: the transport service and the extended transport (`cm_req_set_qp_type`).
pub(crate) fn transport_of(qp_type: QpType) -> (TransportService, u8) {
    match qp_type {
        QpType::Uc => (TransportService::Uc, 0),
        QpType::XrcSend => (TransportService::Extended, EXTENDED_XRC),
        _ => (TransportService::Rc, 0),
    }
}

/// Clears the responder's fields, which a sending end of XRC does not use (`cm_format_req`).
fn without_responder(req: ReqRepr) -> ReqRepr {
    ReqRepr {
        responder_resources: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: false,
        ..req
    }
}
