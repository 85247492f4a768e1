//! The passive side of SIDR: SIDR REQ in, SIDR REP out.

use alloc::boxed::Box;
use core::net::SocketAddr;
use core::time::Duration;

use portolan_provider::cm::{ConnParam, Ece, IdNumber, UserId};
use portolan_provider::error::{Result, Step};
use portolan_provider::verbs::QpType;
use portolan_wire::cm::{AttributeId, SidrRepRepr, SidrReqRepr, SidrStatus};
use portolan_wire::cma::CmaHeader;
use portolan_wire::{Gid, PKey, QKey};

use super::RemoteRequest;
use super::{Asked, answer_private_data, param_without_queue_pair};
use crate::config::time_of_exponent;
use crate::counters::DropReason;
use crate::engine::Cm;
use crate::engine::held::Message;
use crate::id::Id;
use crate::infiniband::socket_of;
use crate::mutant::{Mutant, is_planted};
use crate::params::{check_ece, check_qpn};
use crate::resolve::socket_addr;
use crate::state::{Event, State};
use crate::types::MadPath;

impl Cm {
    /// SIDR REQ (`cm_sidr_req_handler`, then `cma_ib_req_handler`).
    pub(crate) fn sidr_req_received(
        &mut self,
        now: Duration,
        path: &MadPath,
        tid: u64,
        req: &SidrReqRepr,
    ) {
        let name = RemoteRequest {
            host: path.host(),
            request_id: req.request_id,
            tid,
            service_id: req.service_id,
        };
        let known = self.ids.by_remote_request(&name);
        if let Some(number) = known.filter(|_| !is_planted(Mutant::CopyMakesSecondQuestion)) {
            return self.sidr_req_repeated(now, number);
        }
        if let Some(answer) = self.answers.get(now, &name) {
            let answer = **answer;
            self.counters.duplicates[AttributeId::SidrReq] += 1;
            return self.answer_again(path, answer);
        }
        match self.admit_inquiry(path, req) {
            Ok((listener, remote)) => {
                self.new_datagram_child(now, path, name, req, listener, remote)
            }
            Err(status) => {
                let nobody_listens = status == SidrStatus::UNSUPPORTED;
                let held = || Message::SidrReq(Box::new(*req));
                if !(nobody_listens && self.hold(now, path, tid, held())) {
                    self.refuse_question(path, tid, req, status);
                }
            }
        }
    }

    /// Refuses a SIDR REQ that no listener accepts.
    pub(crate) fn refuse_question(
        &mut self,
        path: &MadPath,
        tid: u64,
        req: &SidrReqRepr,
        status: SidrStatus,
    ) {
        let rep = SidrRepRepr {
            request_id: req.request_id,
            status,
            service_id: req.service_id,
            ..SidrRepRepr::default()
        };
        self.answer(path, tid, rep);
    }

    /// A copy of a SIDR REQ: if its answer was lost, the answer is sent again.
    fn sidr_req_repeated(&mut self, now: Duration, number: IdNumber) {
        self.counters.duplicates[AttributeId::SidrReq] += 1;
        if !self.advance(now, number, Event::SidrReqRepeated) {
            return;
        }
        let asked = self.ids.get(number).and_then(|id| id.asked.as_deref());
        if let Some((path, answer)) =
            asked.and_then(|asked| Some((asked.mad_path, asked.answer.as_deref()?)))
        {
            let answer = *answer;
            self.answer_again(&path, answer);
        }
    }

    /// The listener that accepts the SIDR REQ, and the sender's address; otherwise the status to refuse it with.
    fn admit_inquiry(
        &self,
        path: &MadPath,
        req: &SidrReqRepr,
    ) -> core::result::Result<(IdNumber, SocketAddr), SidrStatus> {
        let local = socket_addr(path.local, req.service_id.port(), path.scope_id);
        let found = self.listeners.find(req.service_id, &local);
        let listener = found.and_then(|number| Some((number, self.ids.get(number)?)));
        let (number, id) = listener.ok_or(SidrStatus::UNSUPPORTED)?;
        let in_partition = match path.lids {
            Some(_) => req.pkey.partition() != 0,
            None => PKey::DEFAULT.matches(req.pkey),
        };
        if id.service.qp_type != QpType::Ud || !in_partition {
            return Err(SidrStatus::REJECT);
        }
        if id.ib_service.is_some() {
            // A SIDR REQ carries no GID; the path may, in a global route.
            return Ok((number, socket_of(Gid::from(path.remote))));
        }
        let header = CmaHeader::parse(&req.private_data).map_err(|_| SidrStatus::REJECT)?;
        let addressed = (
            header.src_addr().to_canonical(),
            header.dst_addr().to_canonical(),
        );
        if addressed != (path.remote.to_canonical(), path.local.to_canonical()) {
            return Err(SidrStatus::REJECT);
        }
        Ok((number, socket_addr(path.remote, header.port, path.scope_id)))
    }

    /// Creates the child of an admitted SIDR REQ and reports it to the listener's owner (`cma_ib_new_udp_id`).
    fn new_datagram_child(
        &mut self,
        now: Duration,
        path: &MadPath,
        name: RemoteRequest,
        req: &SidrReqRepr,
        listener_number: IdNumber,
        remote: SocketAddr,
    ) {
        let Some(listener) = self.ids.get(listener_number) else {
            return;
        };
        let Some(uid) = listener.uid else {
            return;
        };
        let (service, options, qkey) = (listener.service, listener.options, listener.qkey);
        let ib_service = listener.ib_service;
        // Linux refuses here, and the peer gives up. A connection request is dropped instead, so that its sender
        // repeats it. The same is better for a SIDR REQ.
        let source = path.host();
        if let Err(reason) = self.make_room(now, listener_number, source) {
            return self.counters.drop(reason);
        }
        let psn = self.random_psn();
        let mut child = Id::new(None, service, psn);
        child.options = options;
        child.qkey = qkey;
        child.ib_service = ib_service;
        child.lids = path.lids;
        let port = match ib_service {
            Some(_) => 0,
            None => req.service_id.port(),
        };
        child.local = Some(socket_addr(path.local, port, path.scope_id));
        child.remote = Some(remote);
        child.device = Some(path.device);
        child.asked = Some(Box::new(Asked {
            waits_at: Some(listener_number),
            mad_path: *path,
            name,
            answer: None,
        }));
        let header_len = child.request_header_len();
        let Ok(number) = self.ids.insert(child, Step::Event) else {
            return self.counters.drop(DropReason::IdsFull);
        };
        self.ids.set_remote_request(name, number);
        self.advance(now, listener_number, Event::SidrReqReceived);
        self.advance(now, number, Event::SidrReqReceived);
        self.begin_half_open(now, listener_number, number, source);
        let user_data = req.private_data.get(header_len..).unwrap_or_default();
        let param = param_without_queue_pair(user_data);
        self.report_request(uid, number, param, Ece::default());
    }

    /// Answers with a queue pair (`cma_send_sidr_rep`).
    pub(crate) fn accept_inquiry(
        &mut self,
        now: Duration,
        number: IdNumber,
        next: State,
        uid: UserId,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<()> {
        let step = Step::Accept;
        let id = self.ids.find_mut(number, step)?;
        let locate = |error| id.locate(error);
        check_qpn(step, param.qp_num).map_err(locate)?;
        let private_data = answer_private_data(step, &param.private_data).map_err(locate)?;
        let ece = check_ece(step, ece).map_err(locate)?;
        id.uid = Some(uid);
        let rep = SidrRepRepr {
            status: SidrStatus::SUCCESS,
            ece,
            qpn: param.qp_num,
            qkey: id.qkey.unwrap_or(QKey::RDMA_CM),
            private_data,
            ..SidrRepRepr::default()
        };
        self.reply(number, rep);
        self.enter(now, number, next);
        Ok(())
    }

    /// Answers with a refusal (`rdma_reject`).
    pub(crate) fn reject_inquiry(
        &mut self,
        now: Duration,
        number: IdNumber,
        next: State,
        private_data: &[u8],
    ) -> Result<()> {
        let id = self.ids.find(number, Step::Reject)?;
        let private_data =
            answer_private_data(Step::Reject, private_data).map_err(|error| id.locate(error))?;
        let rep = SidrRepRepr {
            status: SidrStatus::REJECT,
            private_data,
            ..SidrRepRepr::default()
        };
        self.reply(number, rep);
        self.enter(now, number, next);
        Ok(())
    }

    /// Answers a SIDR REQ whose id is destroyed without an answer (`ib_destroy_cm_id`).
    pub(crate) fn refuse_inquiry(&mut self, number: IdNumber) {
        let status = SidrStatus::REJECT;
        self.reply(
            number,
            SidrRepRepr {
                status,
                ..SidrRepRepr::default()
            },
        );
    }

    /// Adds the request's id to the answer, sends it and keeps it for copies.
    fn reply(&mut self, number: IdNumber, rep: SidrRepRepr) {
        self.request_taken(number);
        let asked = self.ids.get(number).and_then(|id| id.asked.as_deref());
        let Some((name, path)) = asked.map(|asked| (asked.name, asked.mad_path)) else {
            return;
        };
        let rep = SidrRepRepr {
            request_id: name.request_id,
            service_id: name.service_id,
            ..rep
        };
        let Some(mad) = self.encode(name.tid, &rep.into()) else {
            return;
        };
        let asked = self.ids.get_mut(number).and_then(|id| id.asked.as_mut());
        if let Some(asked) = asked {
            asked.answer = Some(Box::new(mad));
        }
        self.transmit_back(&path, mad);
    }

    /// Keeps the answer of an id that is being destroyed for as long as its peer may repeat the request. (Linux keeps
    /// none: there a late copy is a new request.)
    pub(crate) fn remember_answer(&mut self, now: Duration, number: IdNumber) {
        if is_planted(Mutant::AnswerForgotten) {
            return;
        }
        let asked = self.ids.get_mut(number).and_then(|id| id.asked.as_mut());
        let Some((name, answer)) = asked.and_then(|asked| Some((asked.name, asked.answer.take()?)))
        else {
            return;
        };
        let sends = u32::from(self.config.max_cm_retries) + 1;
        let wait = time_of_exponent(self.config.response_timeout_exp) * sends;
        self.answers
            .insert(now, name, now.saturating_add(wait), answer);
    }
}
