//! The asking side of datagram services (SIDR): resolve, ask, and handle the answer.

use std::time::Duration;

use portolan_provider::cm::{CmEvent, ConnParam, Ece, EventParam, EventType, Service, UserId};
use portolan_provider::verbs::QpType;
use portolan_wire::PortSpace;

use super::private_data;
use crate::simulator::AgentKey;
use crate::simulator::agenda::{HostTask, Task};
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::{Agent, Role};
use crate::simulator::oracle::{Life, Phase};
use crate::simulator::plan::{Outcome, Side};
use crate::simulator::port_group::CLAIM_PAUSE;
use crate::simulator::world::World;

/// The service of datagram ids.
pub(super) const DATAGRAMS: Service = Service {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};

/// How long address and route resolution may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    /// The asker starts by resolving the address.
    pub(in crate::simulator) fn start_inquiry(&mut self, number: usize) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let inquiry = &plan.inquiries[number];
        let [host, to] = inquiry.hosts;
        if !self.hosts[host].is_up {
            return Ok(());
        }
        let destination = self.hosts[to].socket_addr(inquiry.port);
        if !self.may_claim(host) {
            let task = Task::StartInquiry(number);
            self.agenda.add(self.now + CLAIM_PAUSE, task);
            return Ok(());
        }
        let (now, key) = (self.now, self.next_key());
        let local = self.hosts[host].wildcard(0);
        let claim = self.claim(host, DATAGRAMS.port_space, local, false)?;
        let machine = &mut self.hosts[host];
        let fail = |error: &dyn std::fmt::Display| violation!("question {number}: {error}");
        let id = machine.cm.create_id(UserId(key), DATAGRAMS);
        let id = id.map_err(|error| fail(&error))?;
        if let Some(qkey) = inquiry.qkey {
            let set = machine.cm.set_qkey(id, qkey);
            set.map_err(|error| fail(&error))?;
        }
        let mut life = Life::new(Phase::Idle, &plan.cm);
        life.resolves(now, RESOLVE_TIMEOUT);
        let side = Side::Active;
        let role = Role::Party {
            inquiry: number,
            side,
        };
        let agent = Agent::new(id, role, life, Some(claim));
        machine.agents.insert(key, agent);
        let resolving =
            machine
                .cm
                .resolve_addr(now, id, Some(claim.local), destination, RESOLVE_TIMEOUT);
        resolving.map_err(|error| fail(&error))?;
        self.inquiries[number].asker = Some((host, key));
        self.drain_cm(host)
    }

    /// The program of a question takes an event.
    pub(super) fn take_answer(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        match event.event {
            EventType::AddrResolved => self.resolve_route(host, key),
            EventType::RouteResolved => self.inquire(host, key, number),
            EventType::Established | EventType::AddrError | EventType::Unreachable => {
                self.inquiries[number].ended = Some((event.event, event.status));
                if let (EventType::Established, EventParam::Ud(param)) = (event.event, &event.param)
                {
                    self.send_datagrams(host, key, number, param)?;
                }
                let delay = self.plan.inquiries[number].destroy_delay[Side::Active as usize];
                self.plan_on(host, delay, HostTask::Destroy(key));
                Ok(())
            }
            other => Err(violation!("{other} at a program that asked")),
        }
    }

    fn inquire(&mut self, host: usize, key: AgentKey, number: usize) -> Result<(), Violation> {
        let extra = self.plan.inquiries[number].extra(Side::Active);
        let param = ConnParam {
            private_data: private_data::compose(number, key as usize, extra),
            ..ConnParam::default()
        };
        let now = self.now;
        let agent = self.hosts[host].agent_mut(key)?;
        agent.life.inquires(now);
        let id = agent.id;
        let asking = self.hosts[host].cm.connect(now, id, &param, Ece::default());
        asking.map_err(|error| violation!("question {number}: {error}"))?;
        self.drain_cm(host)
    }

    /// The asker destroys its id, answered or not.
    pub(in crate::simulator) fn withdraw_inquiry(
        &mut self,
        number: usize,
    ) -> Result<(), Violation> {
        match self.inquiries[number].asker {
            Some((host, key)) => self.destroy(host, key),
            None => Ok(()),
        }
    }

    /// The engine emits the event that ends a wait for an answer.
    pub(in crate::simulator) fn answered(
        &mut self,
        number: usize,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let inquiry = &plan.inquiries[number];
        let to = inquiry.hosts[Side::Passive as usize];
        // For the others of its group, a service that dies does not exist.
        let dies = plan.crashes.iter().any(|crash| crash.host == to);
        let is_served = !dies
            && plan.services.iter().any(|service| {
                (service.host, service.port) == (to, inquiry.port) && service.close_at.is_none()
            });
        let answerer = self.hosts[to].addr;
        self.inquiries[number]
            .check_end(inquiry, event, answerer, is_served)
            .map_err(|violation| violation!("question {number}: {violation}"))?;
        self.tally.count(match event.event {
            EventType::Established => "question answered",
            EventType::AddrError => "key refused",
            _ if event.status < 0 => "question unanswered",
            _ => "question refused",
        });
        Ok(())
    }

    /// Checks that every question ended as the plan demands.
    pub(in crate::simulator) fn check_outcomes(&self) -> Result<(), Violation> {
        for (number, plan) in self.plan.inquiries.iter().enumerate() {
            let ended = self.inquiries[number].ended;
            let is_right = match plan.outcome {
                Outcome::Anything => true,
                Outcome::Served => ended == Some((EventType::Established, 0)),
                Outcome::Refused(status) => {
                    ended == Some((EventType::Unreachable, i32::from(status)))
                }
                Outcome::ForeignKey => matches!(ended, Some((EventType::AddrError, _))),
            };
            ensure!(
                is_right,
                "question {number} must end in {:?}, got {ended:?}",
                plan.outcome
            );
        }
        Ok(())
    }
}
