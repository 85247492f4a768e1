//! The answering side of datagram services (SIDR).

use std::time::Duration;

use portolan_cm::{State, time_of_exponent};
use portolan_provider::cm::{CmEvent, ConnParam, Ece, EventParam, UserId};
use portolan_wire::cm::{CmMessage, RejectReason};
use portolan_wire::cma::CmaHeader;
use portolan_wire::{QKey, Qpn};

use super::inquire::DATAGRAMS;
use super::listen::REMEMBERED_ENOUGH;
use super::private_data;
use crate::simulator::AgentKey;
use crate::simulator::agenda::HostTask;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::{Agent, Role};
use crate::simulator::oracle::{Life, Phase, Question, Told};
use crate::simulator::plan::{Reply, Side};
use crate::simulator::world::World;

impl World {
    /// Opens the services of a machine that has just started.
    pub(in crate::simulator) fn open_services(&mut self, host: usize) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let (now, services) = (self.now, plan.services.iter().enumerate());
        let is_open = |close_at: Option<Duration>| close_at.is_none_or(|close_at| close_at > now);
        for (number, service) in services.filter(|(_, plan)| plan.host == host) {
            if !is_open(service.close_at) {
                continue;
            }
            let key = self.next_key();
            let machine = &self.hosts[host];
            let local = match service.is_specific {
                true => machine.socket_addr(service.port),
                false => machine.wildcard(service.port),
            };
            let claim = self.claim(host, DATAGRAMS.port_space, local, true)?;
            let machine = &mut self.hosts[host];
            let fail = |error: &dyn std::fmt::Display| violation!("no service on {local}: {error}");
            let id = machine.cm.create_id(UserId(key), DATAGRAMS);
            let id = id.map_err(|error| fail(&error))?;
            if let Some(qkey) = service.qkey {
                let set = machine.cm.set_qkey(id, qkey);
                set.map_err(|error| fail(&error))?;
            }
            let device = service.is_specific.then_some(machine.device);
            let binding = machine.cm.bind(now, id, local, device);
            binding.map_err(|error| fail(&error))?;
            let listening = machine.cm.listen(now, id, service.backlog);
            listening.map_err(|error| fail(&error))?;
            let life = Life::new(Phase::Listening, &plan.cm);
            let role = Role::Service { service: number };
            let agent = Agent::new(id, role, life, Some(claim));
            machine.agents.insert(key, agent);
        }
        Ok(())
    }

    pub(in crate::simulator) fn close_service(&mut self, number: usize) -> Result<(), Violation> {
        let host = self.plan.services[number].host;
        let mut agents = self.hosts[host].agents.iter();
        let role = Role::Service { service: number };
        let Some(key) = agents.find(|(_, agent)| agent.role == role) else {
            return Ok(());
        };
        self.destroy(host, *key.0)
    }

    /// The engine reports a question. It must have been asked here, and not been reported before.
    pub(super) fn asked(&mut self, host: usize, event: &CmEvent) -> Result<(), Violation> {
        let EventParam::Ud(param) = &event.param else {
            return Err(violation!("a question without parameters"));
        };
        let (number, asker) = private_data::names(&param.private_data)?;
        let inquiry = self.inquiries.get(number);
        let inquiry = inquiry
            .filter(|inquiry| inquiry.asker.is_some_and(|(_, key)| key as usize == asker))
            .ok_or_else(|| violation!("a question that was never asked"))?;
        let plan = &self.plan.inquiries[number];
        let sent = private_data::compose(number, asker, plan.extra(Side::Active));
        private_data::check(&param.private_data, sent.iter().copied())?;
        ensure!(
            (param.qp_num, param.qkey) == (Qpn::new(0), QKey(0)),
            "a question that names a queue pair"
        );
        let machine = &self.hosts[host];
        let service = machine.agents.get(&event.uid.0).map(|agent| agent.role);
        let Some(Role::Service { service }) = service else {
            return Err(violation!("a question for a closed service"));
        };
        let service = self.plan.services[service];
        ensure!(
            (service.host, service.port) == (plan.hosts[Side::Passive as usize], plan.port),
            "a question was reported to the wrong service"
        );
        let boot = machine.boot;
        let is_alive = |id| machine.cm.state(id).is_ok();
        inquiry.check_first_report((host, boot), self.now, self.remembers(), is_alive)?;
        self.inquiries[number].questions.push(Question {
            host,
            boot,
            id: event.id,
            known_until: None,
        });
        Ok(())
    }

    /// The program takes a question.
    pub(super) fn take_question(&mut self, host: usize, event: &CmEvent) -> Result<(), Violation> {
        let EventParam::Ud(param) = &event.param else {
            return Ok(());
        };
        let (number, _) = private_data::names(&param.private_data)?;
        let key = self.next_key();
        let machine = &mut self.hosts[host];
        machine.cm.request_taken(event.id);
        let life = Life::new(Phase::Asked, &self.plan.cm);
        let role = Role::Party {
            inquiry: number,
            side: Side::Passive,
        };
        let agent = Agent::new(event.id, role, life, None);
        machine.agents.insert(key, agent);
        let delay = self.plan.inquiries[number].reply_delay;
        self.plan_on(host, delay, HostTask::Reply(key));
        Ok(())
    }

    /// The program answers a question.
    pub(in crate::simulator) fn reply(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get(&key) else {
            return Ok(());
        };
        let (id, Role::Party { inquiry, .. }) = (agent.id, agent.role) else {
            return Ok(());
        };
        let plan = self.plan.clone();
        let plan = &plan.inquiries[inquiry];
        let extra = plan.extra(Side::Passive);
        let private_data = private_data::compose(inquiry, key as usize, extra);
        match plan.reply {
            Reply::Accept => {
                let machine = &mut self.hosts[host];
                // A child has its listener's Q_Key.
                let (attr, _) = machine
                    .cm
                    .init_qp_attr(id, portolan_provider::verbs::QpState::Init)
                    .map_err(|error| violation!("question {inquiry}: {error}"))?;
                let qkey = attr.qkey;
                let qpn = self.create_datagram_slot(host, key, inquiry)?;
                let param = ConnParam {
                    qp_num: qpn,
                    private_data: private_data.clone(),
                    ..ConnParam::default()
                };
                let told = Told::Served {
                    qpn,
                    qkey,
                    private_data,
                };
                self.check_key(inquiry, qkey)?;
                self.inquiries[inquiry].told.push(told);
                let (now, machine) = (self.now, &mut self.hosts[host]);
                let accepted = machine
                    .cm
                    .accept(now, id, UserId(key), &param, Ece::default());
                accepted.map_err(|error| violation!("question {inquiry}: {error}"))?;
            }
            Reply::Reject => {
                let machine = &mut self.hosts[host];
                let reason = RejectReason::CONSUMER_DEFINED;
                let rejected = machine.cm.reject(self.now, id, reason, &private_data);
                rejected.map_err(|error| violation!("question {inquiry}: {error}"))?;
                self.inquiries[inquiry]
                    .told
                    .push(Told::Refused { private_data });
            }
            Reply::Ignore => return Ok(()),
            Reply::Destroy => return self.destroy(host, key),
        }
        self.drain_cm(host)?;
        let delay = plan.destroy_delay[Side::Passive as usize];
        self.plan_on(host, delay, HostTask::Destroy(key));
        Ok(())
    }

    /// The answer's Q_Key must be the one that the service's program chose, or the default.
    fn check_key(&self, number: usize, qkey: QKey) -> Result<(), Violation> {
        let plan = &self.plan.inquiries[number];
        let place = (plan.hosts[Side::Passive as usize], plan.port);
        let mut services = self.plan.services.iter();
        let service = services.find(|service| (service.host, service.port) == place);
        let chosen = service.and_then(|service| service.qkey);
        ensure!(
            qkey == chosen.unwrap_or(QKey::RDMA_CM),
            "question {number} was answered with {qkey}, the service has {chosen:?}"
        );
        Ok(())
    }

    /// The id of a question is about to be destroyed. This refuses an unanswered question. The
    /// answer is kept for as long as the question may be repeated.
    pub(super) fn remember_question(&mut self, host: usize, key: AgentKey, number: usize) {
        let machine = &self.hosts[host];
        let Some(agent) = machine.agents.get(&key) else {
            return;
        };
        let (id, boot, config) = (agent.id, machine.boot, &self.plan.cm);
        let sends = u32::from(config.max_cm_retries) + 1;
        let until = self.now + time_of_exponent(config.response_timeout_exp) * sends;
        let is_refused = machine.cm.state(id) == Ok(State::SidrReqRcvd);
        let inquiry = &mut self.inquiries[number];
        if is_refused {
            let private_data = [].into();
            inquiry.told.push(Told::Refused { private_data });
        }
        let mut questions = inquiry.questions.iter_mut();
        let question = questions
            .find(|question| (question.host, question.boot, question.id) == (host, boot, id));
        if let Some(question) = question {
            question.known_until = Some(until);
        }
    }

    /// A service is about to close. This refuses the questions that its program has not taken.
    pub(super) fn refuse_waiting(&mut self, host: usize, service: AgentKey) {
        let waiting = self.hosts[host].channels.waiting();
        for event in waiting.filter(|event| event.uid.0 == service) {
            if let EventParam::Ud(param) = &event.param
                && let Ok((number, _)) = private_data::names(&param.private_data)
            {
                let private_data = [].into();
                self.inquiries[number]
                    .told
                    .push(Told::Refused { private_data });
            }
        }
    }

    /// Whether the datagram is a question that a destroyed id has answered: the same answer must be
    /// sent again.
    pub(in crate::simulator) fn owes_answer(&self, host: usize, mad: &[u8]) -> bool {
        let Ok((_, CmMessage::SidrReq(req))) = CmMessage::parse(mad) else {
            return false;
        };
        let named = req.private_data.get(CmaHeader::LEN..);
        let named = named.and_then(|data| private_data::names(data).ok());
        let inquiry = named.and_then(|(number, _)| self.inquiries.get(number));
        let boot = self.hosts[host].boot;
        self.remembers() && inquiry.is_some_and(|one| one.owes_answer(host, boot, self.now))
    }

    /// Whether the engines remember destroyed ids for the whole run.
    pub(super) fn remembers(&self) -> bool {
        self.plan.cm.max_timewait_remembered >= REMEMBERED_ENOUGH
    }
}
