//! Members of multicast groups: they join, take the event, and leave.

use std::net::IpAddr;
use std::time::Duration;

use portolan_cm::MembershipNumber;
use portolan_provider::cm::{CmEvent, EventParam, EventType, UserId};
use portolan_provider::error::Cause;
use portolan_provider::error::errno::ENODEV;
use portolan_wire::{Gid, QKey, Qpn};

use super::inquire::DATAGRAMS;
use crate::simulator::AgentKey;
use crate::simulator::agenda::{HostTask, Task};
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::groups::Join;
use crate::simulator::host::{Agent, Role};
use crate::simulator::oracle::{Life, Phase};
use crate::simulator::plan::Leaving;
use crate::simulator::port_group::CLAIM_PAUSE;
use crate::simulator::world::World;

/// Added to a limit for the order of tasks at the same time.
const SLACK: Duration = Duration::from_millis(1);

impl World {
    /// The program starts with an id bound to the machine's device.
    pub(in crate::simulator) fn start_member(&mut self, number: usize) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let member = &plan.members[number];
        let host = member.host;
        if !self.hosts[host].is_up {
            return Ok(());
        }
        if !self.may_claim(host) {
            let task = Task::StartMember(number);
            self.agenda.add(self.now + CLAIM_PAUSE, task);
            return Ok(());
        }
        let (now, key) = (self.now, self.next_key());
        let local = self.hosts[host].socket_addr(0);
        let claim = self.claim(host, DATAGRAMS.port_space, local, false)?;
        let machine = &mut self.hosts[host];
        let fail = |error: &dyn std::fmt::Display| violation!("member {number}: {error}");
        let id = machine.cm.create_id(UserId(key), DATAGRAMS);
        let id = id.map_err(|error| fail(&error))?;
        let device = Some(machine.device);
        let binding = machine.cm.bind(now, id, claim.local, device);
        binding.map_err(|error| fail(&error))?;
        let life = Life::new(Phase::Idle, &plan.cm);
        let role = Role::Member { member: number };
        let agent = Agent::new(id, role, life, Some(claim));
        machine.agents.insert(key, agent);
        for (at, join) in member.joins.iter().enumerate() {
            self.plan_on(host, join.after, HostTask::Join { key, number: at });
        }
        self.plan_on(host, member.destroy_after, HostTask::Destroy(key));
        Ok(())
    }

    /// The program joins one of its groups.
    pub(in crate::simulator) fn join(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get(&key) else {
            return Ok(());
        };
        let (id, Role::Member { member }) = (agent.id, agent.role) else {
            return Ok(());
        };
        let join = self.plan.members[member].joins[number];
        let (now, name) = (self.now, self.next_key());
        let machine = &mut self.hosts[host];
        let group = IpAddr::V4(join.group);
        let membership = match machine.cm.join(now, id, UserId(name), group, join.kind) {
            Ok(membership) => membership,
            Err(error) => {
                let count = machine.cm.table_sizes().memberships;
                ensure!(
                    matches!(error.cause, Cause::LimitReached { .. })
                        && count >= self.plan.cm.max_memberships as usize,
                    "member {member}: {error}"
                );
                self.tally.count("membership beyond the limit");
                return Ok(());
            }
        };
        machine.joins.insert(
            name,
            Join {
                agent: key,
                membership,
                member,
                number,
                due: now + join.answer_delay + SLACK,
                is_told: false,
            },
        );
        if let Leaving::After(after) = join.leaving {
            self.plan_on(host, after, HostTask::Leave(name));
        }
        self.drain_cm(host)
    }

    /// The engine asks the machine's sockets to join or leave groups.
    pub(in crate::simulator) fn change_groups(
        &mut self,
        host: usize,
        query: portolan_cm::GroupQuery,
    ) -> Result<(), Violation> {
        self.trace.note(host, || format!("{query:?}"));
        let machine = &mut self.hosts[host];
        let Some(membership) = machine.sockets.take(query)? else {
            return Ok(());
        };
        let joins = machine.joins.iter();
        let mut asked = joins.filter(|(_, join)| join.membership == membership.number);
        let (name, join) = asked
            .next()
            .ok_or_else(|| violation!("{membership:?} is joined but has no program"))?;
        let (name, plan) = (*name, self.plan.members[join.member].joins[join.number]);
        let expected = (
            IpAddr::V4(plan.group),
            plan.kind,
            machine.addr,
            machine.device,
        );
        let found = (
            membership.group,
            membership.kind,
            membership.local,
            membership.device,
        );
        ensure!(
            found == expected
                && machine.agents.get(&join.agent).map(|a| a.id) == Some(membership.id),
            "another membership is joined than was asked for: {membership:?}"
        );
        let task = HostTask::AnswerJoin {
            name,
            membership: membership.number,
            succeeds: plan.succeeds,
            leaves: plan.leaving == Leaving::BeforeEvent,
        };
        self.plan_on(host, plan.answer_delay, task);
        Ok(())
    }

    /// The sockets have joined a group or failed to. The program may have left already, or may
    /// leave before it takes the event.
    pub(in crate::simulator) fn answer_join(
        &mut self,
        host: usize,
        (name, membership): (AgentKey, MembershipNumber),
        succeeds: bool,
        leaves: bool,
    ) -> Result<(), Violation> {
        let machine = &mut self.hosts[host];
        machine.sockets.finish(membership, succeeds);
        let is_wanted = machine.joins.contains_key(&name);
        let answer = if succeeds { Ok(()) } else { Err(ENODEV) };
        let answered = machine.cm.group_joined(self.now, membership, answer);
        answered.map_err(|error| violation!("{error}"))?;
        if !is_wanted {
            self.tally.count("group left while joining");
        }
        if leaves && is_wanted {
            self.tally.count("group left before its event");
            return self.leave(host, name);
        }
        self.drain_cm(host)
    }

    /// The engine emits an event of a membership. It must be the first, be true, and the membership
    /// must still exist.
    pub(in crate::simulator) fn membership_changed(
        &mut self,
        host: usize,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        let machine = &mut self.hosts[host];
        let join = machine
            .joins
            .get_mut(&event.uid.0)
            .ok_or_else(|| violation!("{} of a membership that was left", event.event))?;
        ensure!(
            !std::mem::replace(&mut join.is_told, true),
            "{} of a membership that had its event",
            event.event
        );
        let plan = self.plan.members[join.member].joins[join.number];
        let agent = machine.agents.get(&join.agent);
        ensure!(
            agent.is_some_and(|agent| agent.id == event.id),
            "{} at an id that did not join",
            event.event
        );
        let EventParam::Ud(param) = &event.param else {
            return Err(violation!("a membership without parameters"));
        };
        if event.event == EventType::MulticastError {
            ensure!(
                !plan.succeeds && event.status == -ENODEV,
                "a join that succeeded was reported as failed with {}",
                event.status
            );
            return Ok(());
        }
        let reached = (param.ah_attr.dgid, param.qp_num, param.qkey, event.status);
        let expected = (
            Gid::from_ip(IpAddr::V4(plan.group)),
            Qpn::MULTICAST,
            QKey::RDMA_CM,
            0,
        );
        ensure!(
            reached == expected && machine.sockets.has_joined(join.membership),
            "joined: {param:?}, status {}; expected {expected:?}",
            event.status
        );
        Ok(())
    }

    /// The program leaves a group. Its waiting event is dropped.
    pub(in crate::simulator) fn leave(
        &mut self,
        host: usize,
        name: AgentKey,
    ) -> Result<(), Violation> {
        let machine = &mut self.hosts[host];
        let Some(join) = machine.joins.remove(&name) else {
            return Ok(());
        };
        machine.channels.purge(|event| event.uid.0 == name);
        machine.channels.forget_membership(name);
        let id = machine.agent(join.agent)?.id;
        let left = machine.cm.leave(self.now, id, join.membership);
        left.map_err(|error| violation!("member {}: {error}", join.member))?;
        self.drain_cm(host)
    }

    /// A member's id is about to be destroyed, together with its memberships.
    pub(super) fn forget_memberships(&mut self, host: usize, key: AgentKey) {
        let machine = &mut self.hosts[host];
        let of_member = machine.joins.iter().filter(|(_, join)| join.agent == key);
        let names: Vec<AgentKey> = of_member.map(|(name, _)| *name).collect();
        for name in names {
            machine.joins.remove(&name);
            machine.channels.forget_membership(name);
        }
    }
}
