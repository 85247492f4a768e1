//! The passive side: REQ in, REP out, RTU in.

use alloc::boxed::Box;
use core::time::Duration;

use portolan_provider::cm::{ConnParam, Ece, EventParam, EventType, IdNumber, PathRecord, UserId};
use portolan_provider::error::{Error, Result, Step};
use portolan_provider::verbs::{Mtu, QpType};
use portolan_wire::cm::{
    AttributeId, MraMessage, PrivateData, RejMessage, RejectReason, RepRepr, ReqRepr, RtuRepr,
    TransportService,
};
use portolan_wire::cma::CmaHeader;
use portolan_wire::{Gid, PKey, Qpn, ServiceId};

use crate::active::transport_of;
use crate::config::time_of_exponent;
use crate::counters::DropReason;
use crate::engine::Cm;
use crate::engine::held::Message;
use crate::id::{Connection, Id, RemoteId, RemoteQp};
use crate::infiniband::{is_way_of, socket_of};
use crate::mutant::{Mutant, is_planted};
use crate::params::{check_ece, check_qpn, param_of_req, retry_field};
use crate::resolve::socket_addr;
use crate::state::{Event, State};
use crate::types::{Lids, MadPath};

/// Bytes of private data that a reply carries.
pub const REP_PRIVATE_DATA_MAX: usize = PrivateData::<196>::LEN;

/// Why a REQ is refused.
pub(crate) struct Refusal {
    reason: RejectReason,
    /// The acceptable value, as the reason defines it (IBTA 12.6.7.2).
    additional_info: Info,
}

/// Additional information of a refusal.
enum Info {
    None,
    Gid(Gid),
    Mtu(Mtu),
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self {
            reason,
            additional_info: Info::None,
        }
    }
}

impl Cm {
    /// REQ (`cm_req_handler`, then `cma_ib_req_handler`).
    pub(crate) fn req_received(&mut self, now: Duration, path: &MadPath, tid: u64, req: &ReqRepr) {
        if req.local_qpn.value() <= Qpn::GSI.value() {
            return self.drop_malformed();
        }
        let remote = RemoteId {
            guid: req.local_ca_guid,
            host: path.host(),
            comm_id: req.local_comm_id,
        };
        let qp = RemoteQp {
            guid: req.local_ca_guid,
            host: path.host(),
            qpn: req.local_qpn,
        };
        if let Some(number) = self.ids.by_remote_id(&remote) {
            if !is_planted(Mutant::CopyMakesSecondChild) {
                return self.known_req(now, number, path, tid, req);
            }
            self.ids.forget_remote(number);
        }
        let rejection = self.rejections.get(now, &remote);
        if let Some(rejection) = rejection.filter(|kept| kept.answers(path, tid, req)) {
            let mad = rejection.mad;
            self.counters.duplicates[AttributeId::Req] += 1;
            return self.answer_again(path, mad);
        }
        if self.remembered.contains(now, &remote) && !is_planted(Mutant::StaleRequestTaken) {
            self.counters.duplicates[AttributeId::Req] += 1;
            return self.refuse_req(path, tid, req, RejectReason::STALE_CONN.into());
        }
        // Check for stale connections (`cm_match_req`): one of our connections uses the peer's queue pair, so the peer
        // must have forgotten it.
        if let Some(old) = self.ids.by_remote_qp(&qp) {
            self.refuse_req(path, tid, req, RejectReason::STALE_CONN.into());
            return self.found_stale(now, old);
        }
        match self.admit(path, req) {
            Ok(admitted) => self.new_child(now, path, tid, req, remote, qp, admitted),
            Err(refusal) => {
                let nobody_listens = refusal.reason == RejectReason::INVALID_SERVICE_ID;
                let held = || Message::Req(Box::new(*req));
                if !(nobody_listens && self.hold(now, path, tid, held())) {
                    self.refuse_req(path, tid, req, refusal);
                }
            }
        }
    }

    /// A REQ with the key of an existing connection: a copy, or from a peer that restarted and drew the same number.
    fn known_req(
        &mut self,
        now: Duration,
        number: IdNumber,
        path: &MadPath,
        tid: u64,
        req: &ReqRepr,
    ) {
        let known = self.ids.get(number).and_then(|id| id.connection.as_deref());
        if known.is_none_or(|connection| connection.remote_qpn != req.local_qpn) {
            self.refuse_req(path, tid, req, RejectReason::STALE_CONN.into());
            return self.found_stale(now, number);
        }
        self.counters.duplicates[AttributeId::Req] += 1;
        if !self.advance(now, number, Event::ReqRepeated) {
            return;
        }
        match self.ids.get(number).map(|id| id.state) {
            Some(State::ReqRcvd) => self.put_off(number),
            Some(State::Timewait) => {
                self.refuse_req(path, tid, req, RejectReason::STALE_CONN.into());
            }
            _ if is_planted(Mutant::RepSentOnce) => {}
            _ => self.send_request_again(number),
        }
    }

    /// Checks whether a listener accepts the request, and returns what the child needs.
    fn admit(&self, path: &MadPath, req: &ReqRepr) -> core::result::Result<Admitted, Refusal> {
        let port = req.service_id.port();
        let local = socket_addr(path.local, port, path.scope_id);
        let listener = self.listeners.find(req.service_id, &local);
        let listener = listener.and_then(|number| {
            let id = self.ids.get(number)?;
            Some((number, id, id.uid?))
        });
        let (number, id, uid) = listener.ok_or(RejectReason::INVALID_SERVICE_ID)?;
        // Linux rejects the following with "consumer defined"; here the reason is more precise if IBTA has one.
        let remote = match id.ib_service {
            Some(_) => socket_of(req.primary.local_gid),
            None => requester(path, req)?,
        };
        if !serves(id.service.qp_type, req) {
            return Err(RejectReason::INVALID_TRANSPORT_TYPE.into());
        }
        let own_gid = Gid::from(path.local);
        let is_its_way = match path.lids {
            Some(lids) => is_way_of(path, lids, req),
            None => is_routed_way_of(path, req),
        };
        if !is_its_way {
            let additional_info = Info::Gid(own_gid);
            return Err(Refusal {
                reason: RejectReason::INVALID_GID,
                additional_info,
            });
        }
        let mtu = Mtu::from_number(req.path_mtu.0).filter(|mtu| *mtu <= path.device.mtu);
        let mtu = mtu.ok_or(Refusal {
            reason: RejectReason::INVALID_MTU,
            additional_info: Info::Mtu(path.device.mtu),
        })?;
        Ok(Admitted {
            listener: number,
            uid,
            service: id.service,
            ib_service: id.ib_service,
            options: id.options,
            local: match id.ib_service {
                Some(_) => socket_of(own_gid),
                None => local,
            },
            remote,
            mtu,
        })
    }

    /// Creates the child of an admitted request and reports it to the listener's owner.
    #[expect(clippy::too_many_arguments, reason = "all parts of a parsed request")]
    fn new_child(
        &mut self,
        now: Duration,
        path: &MadPath,
        tid: u64,
        req: &ReqRepr,
        remote: RemoteId,
        qp: RemoteQp,
        admitted: Admitted,
    ) {
        let source = path.host();
        if let Err(reason) = self.make_room(now, admitted.listener, source) {
            return self.counters.drop(reason);
        }
        let Some(local_comm_id) = self.draw_comm_id() else {
            return self.counters.drop(DropReason::IdsFull);
        };
        let psn = self.random_psn();
        let mut child = Id::new(None, admitted.service, psn);
        child.options = admitted.options;
        child.ib_service = admitted.ib_service;
        child.lids = path.lids;
        child.local = Some(admitted.local);
        child.remote = Some(admitted.remote);
        child.device = Some(path.device);
        child.path = Some(path_from(req, admitted.mtu, path.lids));
        let asked = req.local_cm_response_timeout;
        let granted = asked
            .min(self.config.longest_grant_exp)
            .max(self.config.shortest_response_exp);
        child.connection = Some(Box::new(Connection {
            waits_at: Some(admitted.listener),
            passive: true,
            was_put_off: false,
            mad_path: *path,
            local_comm_id,
            remote_comm_id: Some(req.local_comm_id),
            remote_guid: req.local_ca_guid,
            tid,
            dreq_tid: 0,
            local_qpn: Qpn::new(0),
            remote_qpn: req.local_qpn,
            remote_psn: req.starting_psn,
            // The peer's initiator depth is our responder resources, and the reverse.
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            mtu: admitted.mtu,
            ack_timeout_exp: req.primary.local_ack_timeout,
            request_response_exp: req.remote_cm_response_timeout,
            response_timeout: time_of_exponent(granted),
            max_retries: req.max_cm_retries,
            request: None,
            disconnect_reported: false,
        }));
        let header_len = child.request_header_len();
        let Ok(number) = self.ids.insert(child, Step::Event) else {
            return self.counters.drop(DropReason::IdsFull);
        };
        self.ids.set_comm_id(local_comm_id, number);
        self.ids.set_remote(remote, qp, number);
        self.advance(now, admitted.listener, Event::ReqReceived);
        self.advance(now, number, Event::ReqReceived);
        self.begin_half_open(now, admitted.listener, number, source);
        let param = EventParam::Conn(param_of_req(req, header_len));
        self.report_request(admitted.uid, number, param, req.ece);
    }

    /// Accepts a connection request (`rdma_accept`). `uid` becomes the child's tag. It ends in `Established`,
    /// `Rejected` or `Unreachable`; for datagrams it ends at once, without an event.
    ///
    /// # Errors
    /// `InvalidState`, for example if the peer gave up; `NoSuchObject`, `LimitReached`; `InvalidArgument` for private
    /// data of more than 196 bytes (datagrams: 136) or an invalid queue pair number.
    pub fn accept(
        &mut self,
        now: Duration,
        id: IdNumber,
        uid: UserId,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<()> {
        let step = Step::Accept;
        self.begin(now, step)?;
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let next = id.command(Event::Accept, step)?;
        if id.asked.is_some() {
            return self.accept_inquiry(now, number, next, uid, param, ece);
        }
        let checked = check_accept(param, ece).map_err(|error| id.locate(error));
        let (private_data, ece) = checked?;
        let connection = id.connection(step)?;
        let tid = connection.tid;
        let rep = RepRepr {
            local_comm_id: connection.local_comm_id,
            remote_comm_id: connection.remote_comm_id.unwrap_or(0),
            local_qpn: param.qp_num,
            ece,
            starting_psn: id.starting_psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            target_ack_delay: connection.mad_path.device.ack_delay_exp.min(31),
            failover_accepted: 0,
            end_to_end_flow_control: param.flow_control,
            rnr_retry_count: retry_field(param.rnr_retry_count),
            srq: param.srq,
            local_ca_guid: connection.mad_path.device.node_guid,
            private_data,
            ..RepRepr::default()
        };
        let rep = match id.service.qp_type {
            QpType::XrcRecv => of_xrc(rep),
            _ => rep,
        };
        id.uid = Some(uid);
        if let Some(connection) = id.connection.as_mut() {
            connection.local_qpn = param.qp_num;
            connection.responder_resources = param.responder_resources;
            connection.initiator_depth = param.initiator_depth;
        }
        self.request_taken(number);
        self.enter(now, number, next);
        self.send_request(now, number, tid, rep);
        Ok(())
    }

    /// Reports that the queue pair received data before the RTU arrived (`rdma_notify`). This establishes the
    /// connection as the RTU would.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`, `LimitReached`.
    pub fn notify_established(&mut self, now: Duration, id: IdNumber) -> Result<()> {
        let step = Step::Notify;
        self.begin(now, step)?;
        let found = self.ids.find(id, step)?;
        let next = found.command(Event::NotifyEstablished, step)?;
        if found.state != next {
            self.enter(now, id, next);
            self.report_empty(id, EventType::Established, 0);
        }
        Ok(())
    }

    /// RTU (`cm_rtu_handler`).
    pub(crate) fn rtu_received(&mut self, now: Duration, path: &MadPath, tid: u64, rtu: &RtuRepr) {
        let found = self.find_both(rtu.remote_comm_id, rtu.local_comm_id, path);
        // An id whose connection was displaced stays until its owner destroys it.
        let is_open = |number: &IdNumber| {
            let id = self.ids.get(*number);
            id.is_some_and(|id| id.state != State::Closed)
        };
        let Some(number) = found.filter(is_open) else {
            self.drop_unknown();
            // The sender believes that it is connected, but the connection was displaced or its process is dead. (Linux
            // does not answer; IBTA 12.6.7.2 defines the reason.)
            let (ids, reason) = (
                (rtu.remote_comm_id, rtu.local_comm_id),
                RejectReason::INVALID_COMM_ID,
            );
            return self.refuse(path, tid, ids, RejMessage::Other, reason, &[]);
        };
        if self.advance(now, number, Event::RtuReceived) {
            self.report_empty(number, EventType::Established, 0);
        } else {
            self.counters.duplicates[AttributeId::Rtu] += 1;
        }
    }

    /// Asks the sender of a repeated REQ to wait, because the owner has not answered yet.
    fn put_off(&mut self, number: IdNumber) {
        self.send_mra(number, MraMessage::Req);
        let id = self.ids.get_mut(number);
        if let Some(connection) = id.and_then(|id| id.connection.as_mut()) {
            connection.was_put_off = true;
        }
    }

    /// Refuses a REQ without an id (`cm_issue_rej`).
    pub(crate) fn refuse_req(&mut self, path: &MadPath, tid: u64, req: &ReqRepr, refusal: Refusal) {
        let ids = (0, req.local_comm_id);
        let mtu;
        let info: &[u8] = match &refusal.additional_info {
            Info::None => &[],
            Info::Gid(gid) => &gid.0,
            Info::Mtu(largest) => {
                mtu = [(*largest as u8) << 4];
                &mtu
            }
        };
        self.refuse(path, tid, ids, RejMessage::Req, refusal.reason, info);
    }
}

/// What the child of an accepted request needs.
struct Admitted {
    listener: IdNumber,
    uid: UserId,
    service: portolan_provider::cm::Service,
    ib_service: Option<ServiceId>,
    options: crate::types::IdOptions,
    local: core::net::SocketAddr,
    remote: core::net::SocketAddr,
    mtu: Mtu,
}

/// The peer's address in the request, which must be the address that it came from.
fn requester(
    path: &MadPath,
    req: &ReqRepr,
) -> core::result::Result<core::net::SocketAddr, RejectReason> {
    let header = CmaHeader::parse(&req.private_data).map_err(|_| RejectReason::CONSUMER_DEFINED)?;
    let addressed = (
        header.src_addr().to_canonical(),
        header.dst_addr().to_canonical(),
    );
    if addressed != (path.remote.to_canonical(), path.local.to_canonical()) {
        return Err(RejectReason::CONSUMER_DEFINED);
    }
    Ok(socket_addr(path.remote, header.port, path.scope_id))
}

/// Whether a request arrived on the primary path that it states, on RoCE.
fn is_routed_way_of(path: &MadPath, req: &ReqRepr) -> bool {
    let primary = &req.primary;
    primary.remote_gid == Gid::from(path.local)
        && primary.local_gid == Gid::from(path.remote)
        && PKey::DEFAULT.matches(req.pkey)
}

fn check_accept(param: &ConnParam, ece: Ece) -> Result<(PrivateData<196>, Ece)> {
    let step = Step::Accept;
    check_qpn(step, param.qp_num)?;
    let private_data = PrivateData::from_slice(&param.private_data).map_err(|_| {
        let expected = alloc::format!("at most {REP_PRIVATE_DATA_MAX} bytes");
        let found = alloc::format!("{} bytes", param.private_data.len());
        Error::invalid(step, "private data", expected, found)
    })?;
    Ok((private_data, check_ece(step, ece)?))
}

/// The path of a child: the REQ's, seen from this end (`cm_format_paths_from_req`).
fn path_from(req: &ReqRepr, mtu: Mtu, lids: Option<Lids>) -> PathRecord {
    let primary = &req.primary;
    PathRecord {
        dgid: primary.local_gid,
        sgid: primary.remote_gid,
        // On RoCE, a REQ has permissive LIDs.
        dlid: lids.map_or(0, |lids| lids.remote),
        slid: lids.map_or(0, |lids| lids.local),
        flow_label: primary.flow_label,
        hop_limit: primary.hop_limit.max(1),
        traffic_class: primary.traffic_class,
        pkey: req.pkey,
        sl: primary.service_level,
        mtu,
        rate: primary.packet_rate,
        packet_lifetime: primary.local_ack_timeout.saturating_sub(1),
    }
}

/// Whether a listener of this type serves a request (`cma_ib_check_req_qp_type`).
fn serves(qp_type: QpType, req: &ReqRepr) -> bool {
    let peers = match qp_type {
        QpType::Ud | QpType::XrcSend => return false,
        QpType::XrcRecv => QpType::XrcSend,
        same => same,
    };
    let (transport, extended) = transport_of(peers);
    req.transport == transport
        && (transport != TransportService::Extended || req.extended_transport == extended)
}

/// Changes a reply to that of an XRC receiving end: its queue pair number is in another field, and it always uses
/// shared receive queues (`cm_format_rep`).
fn of_xrc(rep: RepRepr) -> RepRepr {
    RepRepr {
        local_qpn: Qpn::new(0),
        local_eecn: rep.local_qpn.value(),
        initiator_depth: 0,
        end_to_end_flow_control: false,
        srq: true,
        ..rep
    }
}
