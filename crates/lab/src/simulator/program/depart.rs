//! How connections end: by disconnecting, by dying, and at the end of the run.

use portolan_cm::{State, TableSizes};
use portolan_provider::cm::{CmEvent, EventType};
use portolan_provider::error::Cause;

use crate::simulator::AgentKey;
use crate::simulator::agenda::HostTask;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::Role;
use crate::simulator::oracle::EndpointIndex;
use crate::simulator::plan::{Ending, Expect, Side};
use crate::simulator::world::World;

impl World {
    /// The program disconnects. Its queue pair goes to ERR first, as in the library.
    pub(in crate::simulator) fn disconnect(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get_mut(&key) else {
            return Ok(());
        };
        agent.will_disconnect = true;
        let (id, endpoint) = (agent.id, agent.endpoint);
        self.fail_queue_pair(host, key)?;
        if let Some(endpoint) = endpoint {
            self.oracle.endpoints[endpoint].left = true;
        }
        match self.hosts[host].cm.disconnect(self.now, id) {
            Ok(()) => {}
            // There was no connection yet.
            Err(error) if matches!(error.cause, Cause::InvalidState { .. }) => {}
            Err(error) => return Err(violation!("{error}")),
        }
        let (now, in_timewait) = (self.now, self.hosts[host].in_timewait(id));
        self.hosts[host]
            .agent_mut(key)?
            .life
            .disconnects(now, in_timewait);
        self.drain_cm(host)
    }

    /// The program learns that the connection has ended.
    pub(super) fn disconnected(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        side: Side,
    ) -> Result<(), Violation> {
        let index = self.endpoint_of(host, key)?;
        let has_cause = self.oracle.endpoints[index].left
            || self.oracle.peer(index).is_some_and(|peer| peer.left)
            || self.dies(&self.plan.conversations[number].hosts);
        ensure!(
            has_cause,
            "endpoint {index} was disconnected, but no side asked for it"
        );
        self.conversations[number].disconnected[side as usize] = true;
        self.fail_queue_pair(host, key)?;
        let plan = self.plan.clone();
        let plan = &plan.conversations[number];
        if plan.ignores_disconnect[side as usize] {
            return Ok(());
        }
        let delay = plan.disconnect_delay[side as usize];
        self.plan_on(host, delay, HostTask::Disconnect(key));
        if !plan.waits_for_timewait[side as usize] {
            let delay = delay + plan.destroy_delay[side as usize];
            self.plan_on(host, delay, HostTask::Destroy(key));
        }
        Ok(())
    }

    pub(super) fn timewait_over(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        side: Side,
    ) -> Result<(), Violation> {
        let delay = self.plan.conversations[number].destroy_delay[side as usize];
        self.plan_on(host, delay, HostTask::Destroy(key));
        Ok(())
    }

    /// Moves an id's queue pair to ERR, which completes all its work.
    pub(super) fn fail_queue_pair(&mut self, host: usize, key: AgentKey) -> Result<(), Violation> {
        let Some(index) = self.hosts[host].agent(key)?.endpoint else {
            return Ok(());
        };
        let qpn = self.oracle.endpoints[index].qpn.value();
        if let Some(slot) = self.hosts[host].slots.get_mut(&qpn) {
            slot.fail()?;
            self.drain_qp(host, qpn)?;
        }
        Ok(())
    }

    /// The program destroys an id in any state, and everything that belongs to it.
    pub(in crate::simulator) fn destroy(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get(&key) else {
            return Ok(());
        };
        let (id, endpoint, claim) = (agent.id, agent.endpoint, agent.claim);
        let role = agent.role;
        let is_listener = matches!(role, Role::Listener { .. } | Role::Service { .. });
        self.trace.note(host, || format!("destroys {id}"));
        match role {
            Role::Talker {
                conversation,
                side: Side::Passive,
            } => self.remember_child(host, key, conversation),
            Role::Party {
                inquiry,
                side: Side::Passive,
            } => self.remember_question(host, key, inquiry),
            Role::Service { .. } => self.refuse_waiting(host, key),
            Role::Member { .. } => self.forget_memberships(host, key),
            _ => {}
        }
        let machine = &mut self.hosts[host];
        let is_gone = |event: &CmEvent| event.id == id || is_listener && event.uid.0 == key;
        machine.channels.purge(is_gone);
        machine.channels.forget(id);
        machine.agents.remove(&key);
        if let Some(claim) = claim {
            self.release(host, &claim);
        }
        let machine = &mut self.hosts[host];
        machine
            .cm
            .destroy_id(self.now, id)
            .map_err(|error| violation!("{error}"))?;
        self.remove_datagram_slots(host, key);
        if let Some(endpoint) = endpoint {
            self.remove_endpoint(host, endpoint)?;
        }
        self.drain_cm(host)
    }

    /// Notes how long a copy of the request of an id that is about to be rejected or destroyed must
    /// still be recognised.
    pub(super) fn remember_child(&mut self, host: usize, key: AgentKey, number: usize) {
        let machine = &self.hosts[host];
        let Some(agent) = machine.agents.get(&key) else {
            return;
        };
        let state = machine.cm.state(agent.id);
        let until = match state {
            Ok(State::Timewait) => machine.cm.deadline(agent.id).ok().flatten(),
            Ok(
                State::RepSent
                | State::MraRepRcvd
                | State::Established
                | State::DreqSent
                | State::DreqRcvd,
            ) => Some(self.now + agent.life.timewait),
            Ok(State::ReqRcvd) => Some(self.now + agent.life.repeats),
            _ => None,
        };
        let (id, boot, now) = (agent.id, machine.boot, self.now);
        let children = self.conversations[number].children.iter_mut();
        for child in children.filter(|child| (child.host, child.boot, child.id) == (host, boot, id))
        {
            let until = until.unwrap_or(now);
            child.refused_until = Some(child.refused_until.map_or(until, |set| set.max(until)));
        }
    }

    /// Destroys a queue pair and its memory. In half of the cases its last completions are taken
    /// first.
    fn remove_endpoint(&mut self, host: usize, index: EndpointIndex) -> Result<(), Violation> {
        self.oracle.endpoints[index].left = true;
        let qpn = self.oracle.endpoints[index].qpn.value();
        if let Some(mut slot) = self.hosts[host].slots.remove(&qpn) {
            if self.rng.percent(50) {
                slot.fail()?;
                self.hosts[host].slots.insert(qpn, slot);
                self.drain_last(host, qpn)?;
            } else {
                self.tally.queue_pair(slot.qp.counters());
            }
        }
        let arenas = self.oracle.endpoints[index].arenas;
        arenas
            .all()
            .into_iter()
            .for_each(|arena| self.hosts[host].deregister(arena));
        Ok(())
    }

    /// Gives up a conversation in any state.
    pub(in crate::simulator) fn give_up(&mut self, number: usize) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            let agents = self.hosts[host].agents.iter();
            let of_conversation = agents.filter(|(_, agent)| {
                matches!(agent.role, Role::Talker { conversation, .. } if conversation == number)
            });
            let keys: Vec<AgentKey> = of_conversation.map(|(key, _)| *key).collect();
            keys.into_iter()
                .try_for_each(|key| self.destroy(host, key))?;
        }
        Ok(())
    }

    /// A program deregisters a region, whether or not work uses it.
    pub(in crate::simulator) fn revoke(&mut self, number: usize) -> Result<(), Violation> {
        let Some(revocation) = self.plan.conversations[number].revocation else {
            return Ok(());
        };
        let agent = self.conversations[number].agents[revocation.side as usize];
        let Some((host, key)) = agent else {
            return Ok(());
        };
        let index = self.hosts[host]
            .agents
            .get(&key)
            .and_then(|agent| agent.endpoint);
        let Some(index) = index else { return Ok(()) };
        self.trace.note(host, || {
            format!("endpoint {index}: {:?} is gone", revocation.use_of_region)
        });
        self.tally.count("region revoked");
        let arena = self.oracle.endpoints[index]
            .arenas
            .of_mut(revocation.use_of_region);
        arena.is_revoked = true;
        let arena = *arena;
        self.hosts[host].deregister(&arena);
        Ok(())
    }

    /// An ending with a fixed time happens.
    pub(in crate::simulator) fn end_as_planned(&mut self, number: usize) -> Result<(), Violation> {
        let ending = self.plan.conversations[number].ending;
        let (Ending::Disconnect { side, .. } | Ending::Destroy { side, .. }) = ending else {
            return Ok(());
        };
        let Some((host, key)) = self.conversations[number].agents[side as usize] else {
            return Ok(());
        };
        match ending {
            Ending::Destroy { .. } => self.destroy(host, key),
            _ => self.disconnect(host, key),
        }
    }

    /// Whether one of the processes dies in this run.
    fn dies(&self, hosts: &[usize]) -> bool {
        let mut crashes = self.plan.crashes.iter();
        crashes.any(|crash| hosts.contains(&crash.host))
    }

    /// Checks that every conversation ended as the plan demands.
    pub(in crate::simulator) fn check_expectations(&self) -> Result<(), Violation> {
        for (number, plan) in self.plan.conversations.iter().enumerate() {
            let conversation = &self.conversations[number];
            let refusal = conversation.refusal;
            match plan.expect {
                Expect::Anything => {}
                Expect::Completion => ensure!(
                    conversation.is_complete && conversation.disconnected == [true; 2],
                    "conversation {number} was to be completed, but was not: {refusal:?}, \
                     disconnected {:?}",
                    conversation.disconnected
                ),
                Expect::Rejection(reason) => {
                    let expected = Some((EventType::Rejected, i32::from(reason)));
                    ensure!(
                        refusal == expected,
                        "conversation {number} must be rejected with {reason}, got {refusal:?}"
                    );
                }
                Expect::AddressError => ensure!(
                    matches!(refusal, Some((EventType::AddrError, _))),
                    "conversation {number} must fail to resolve its address, got {refusal:?}"
                ),
            }
        }
        Ok(())
    }

    /// Destroys everything that the programs still have.
    pub(in crate::simulator) fn take_down(&mut self) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            let keys: Vec<AgentKey> = self.hosts[host].agents.keys().copied().collect();
            keys.into_iter()
                .try_for_each(|key| self.destroy(host, key))?;
        }
        Ok(())
    }

    /// Checks that nothing is left.
    pub(in crate::simulator) fn check_nothing_left(&self) -> Result<(), Violation> {
        for group in &self.port_groups {
            ensure!(
                group.dead_members.is_empty(),
                "{}: the coordinator has not noticed these deaths: {:?}",
                group.addr,
                group.dead_members
            );
            ensure!(
                group.ports.is_empty() && group.waiting.is_empty(),
                "{}: {} ports still bound, {} datagrams still waiting",
                group.addr,
                group.ports.len(),
                group.waiting.len()
            );
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let sizes = host.cm.table_sizes();
            // Remembered ids are forgotten only when their place is needed.
            let (remembered, rejections, answers) =
                (sizes.remembered, sizes.rejections, sizes.answers);
            let kept = [remembered, rejections, answers];
            let limit = self.plan.cm.max_timewait_remembered;
            ensure!(
                sizes
                    == TableSizes {
                        remembered,
                        rejections,
                        answers,
                        ..TableSizes::default()
                    }
                    && kept.iter().all(|kept| *kept <= limit),
                "h{index}: the connection manager still holds {sizes:?}"
            );
            ensure!(
                host.next_timeout().is_none(),
                "h{index}: a timer still runs"
            );
            let left = [
                host.slots.len() + host.datagram_slots.len(),
                host.memory.len(),
                host.ram.allocations(),
                host.channels.len(),
                host.agents.len(),
                host.sockets.len(),
                host.joins.len(),
            ];
            ensure!(
                left.iter().all(|count| *count == 0),
                "h{index}: queue pairs, regions, memory, events, ids, groups of the sockets, \
                 memberships are left: {left:?}"
            );
        }
        Ok(())
    }
}
