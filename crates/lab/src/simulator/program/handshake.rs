//! The handshake of both sides.

use std::time::Duration;

use portolan_cm::State;
use portolan_provider::cm::{CmEvent, ConnParam, Ece, EventParam, EventType, UserId};
use portolan_wire::cm::RejectReason;

use super::listen::SERVICE;
use super::private_data;
use crate::simulator::AgentKey;
use crate::simulator::agenda::{HostTask, Task};
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::{Agent, Role};
use crate::simulator::oracle::{Life, Phase};
use crate::simulator::plan::{Answer, Side};
use crate::simulator::port_group::CLAIM_PAUSE;
use crate::simulator::world::World;

/// How long address and route resolution may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    /// The active side starts.
    pub(in crate::simulator) fn start_conversation(
        &mut self,
        number: usize,
    ) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let conversation = &plan.conversations[number];
        let [host, to] = conversation.hosts;
        if !self.hosts[host].is_up {
            return Ok(());
        }
        let destination = self.hosts[to].socket_addr(conversation.port);
        if !self.may_claim(host) {
            let task = Task::StartConversation(number);
            self.agenda.add(self.now + CLAIM_PAUSE, task);
            return Ok(());
        }
        // The patience begins here: while no port can be claimed there is nothing to give up.
        let give_up_at = self.now + conversation.patience;
        self.agenda.add(give_up_at, Task::GiveUp(number));
        let (now, key) = (self.now, self.next_key());
        let local = match conversation.binds_first {
            true => self.hosts[host].socket_addr(0),
            false => self.hosts[host].wildcard(0),
        };
        let claim = self.claim(host, SERVICE.port_space, local, false)?;
        let local = claim.local;
        let machine = &mut self.hosts[host];
        let fail = |error: &dyn std::fmt::Display| violation!("conversation {number}: {error}");
        let id = machine
            .cm
            .create_id(UserId(key), SERVICE)
            .map_err(|error| fail(&error))?;
        let source = match conversation.binds_first {
            true => {
                let device = Some(machine.device);
                machine
                    .cm
                    .bind(now, id, local, device)
                    .map_err(|error| fail(&error))?;
                None
            }
            false => Some(local),
        };
        let mut life = Life::new(Phase::Idle, &plan.cm);
        life.resolves(now, RESOLVE_TIMEOUT);
        let role = Role::Talker {
            conversation: number,
            side: Side::Active,
        };
        machine
            .agents
            .insert(key, Agent::new(id, role, life, Some(claim)));
        let resolving = machine
            .cm
            .resolve_addr(now, id, source, destination, RESOLVE_TIMEOUT);
        resolving.map_err(|error| fail(&error))?;
        self.conversations[number].agents[Side::Active as usize] = Some((host, key));
        self.drain_cm(host)
    }

    pub(super) fn resolve_route(&mut self, host: usize, key: AgentKey) -> Result<(), Violation> {
        let id = self.hosts[host].agent(key)?.id;
        let resolving = self.hosts[host]
            .cm
            .resolve_route(self.now, id, RESOLVE_TIMEOUT);
        resolving.map_err(|error| violation!("{error}"))?;
        self.drain_cm(host)
    }

    /// Creates the queue pair and sends the request.
    pub(super) fn connect(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
    ) -> Result<(), Violation> {
        let endpoint = self.create_endpoint(host, key, number, Side::Active)?;
        self.post_early_receives(host, key)?;
        let plan = self.plan.clone();
        let conversation = &plan.conversations[number];
        let read_depth = conversation.workloads[Side::Active as usize].read_depth;
        let extra = conversation.private_data_extra;
        let param = ConnParam {
            private_data: private_data::compose(number, endpoint, extra),
            responder_resources: read_depth,
            initiator_depth: read_depth,
            flow_control: true,
            retry_count: conversation.retry_count,
            rnr_retry_count: conversation.rnr_retry_count,
            srq: false,
            qp_num: self.oracle.endpoints[endpoint].qpn,
        };
        let now = self.now;
        let agent = self.hosts[host].agent_mut(key)?;
        agent.life.connects(now);
        let id = agent.id;
        let connecting = self.hosts[host].cm.connect(now, id, &param, Ece::default());
        connecting.map_err(|error| violation!("{error}"))?;
        self.drain_cm(host)
    }

    /// The passive side answers the request, unless it was withdrawn.
    pub(in crate::simulator) fn answer(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get(&key) else {
            return Ok(());
        };
        let Role::Talker {
            conversation: number,
            ..
        } = agent.role
        else {
            return Ok(());
        };
        let id = agent.id;
        if self.hosts[host].cm.state(id) != Ok(State::ReqRcvd) {
            return self.destroy(host, key);
        }
        match self.plan.conversations[number].answer {
            Answer::Accept => self.accept(host, key, number),
            Answer::Reject { data_len } => {
                let data: Vec<u8> = private_data::filler(number, data_len).collect();
                self.remember_child(host, key, number);
                let machine = &mut self.hosts[host];
                let reason = RejectReason::CONSUMER_DEFINED;
                let rejecting = machine.cm.reject(self.now, id, reason, &data);
                rejecting.map_err(|error| violation!("{error}"))?;
                machine.agent_mut(key)?.life.rejects();
                self.drain_cm(host)?;
                let delay = self.plan.conversations[number].destroy_delay[Side::Passive as usize];
                self.plan_on(host, delay, HostTask::Destroy(key));
                Ok(())
            }
            Answer::Ignore => Ok(()),
            Answer::Destroy => self.destroy(host, key),
        }
    }

    fn accept(&mut self, host: usize, key: AgentKey, number: usize) -> Result<(), Violation> {
        let endpoint = self.create_endpoint(host, key, number, Side::Passive)?;
        let id = self.hosts[host].agent(key)?.id;
        let child = self.conversations[number].children.iter().rev();
        let asker = child
            .filter(|child| child.host == host)
            .find(|child| child.id == id);
        let asker = asker
            .ok_or_else(|| violation!("{id} has no request"))?
            .asker;
        self.oracle.endpoints[endpoint].peer = Some(asker);
        self.post_early_receives(host, key)?;
        let plan = self.plan.clone();
        let conversation = &plan.conversations[number];
        let read_depth = conversation.workloads[Side::Passive as usize].read_depth;
        let (responder, initiator) = self.ready(host, key, read_depth)?;
        if !conversation.notifies {
            self.ready_to_send(host, key)?;
        }
        let param = ConnParam {
            private_data: private_data::compose(number, endpoint, conversation.private_data_extra),
            responder_resources: responder,
            initiator_depth: initiator,
            flow_control: true,
            retry_count: 0,
            rnr_retry_count: conversation.rnr_retry_count,
            srq: false,
            qp_num: self.oracle.endpoints[endpoint].qpn,
        };
        self.oracle.endpoints[endpoint].agreed = true;
        let now = self.now;
        let machine = &mut self.hosts[host];
        machine.agent_mut(key)?.life.accepts(now);
        let accepting = machine
            .cm
            .accept(now, id, UserId(key), &param, Ece::default());
        accepting.map_err(|error| violation!("{error}"))?;
        self.drain_cm(host)
    }

    /// The reply arrived. It must come from an endpoint that accepted this one's request.
    pub(super) fn replied(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        let EventParam::Conn(conn) = &event.param else {
            return Err(violation!("a reply without parameters"));
        };
        let (of, peer) = private_data::names(&conn.private_data)?;
        let plan = self.plan.clone();
        let conversation = &plan.conversations[number];
        let sent = private_data::compose(number, peer, conversation.private_data_extra);
        private_data::check(&conn.private_data, sent.iter().copied())?;
        let own = self.endpoint_of(host, key)?;
        let other = self.oracle.endpoints.get(peer).filter(|other| {
            of == number && other.agreed && other.peer == Some(own) && other.qpn == conn.qp_num
        });
        ensure!(
            other.is_some(),
            "a reply from endpoint {peer}, which did not accept {own}"
        );
        self.oracle.endpoints[own].peer = Some(peer);
        let id = self.hosts[host].agent(key)?.id;
        if self.hosts[host].cm.state(id) != Ok(State::RepRcvd) {
            // It was withdrawn, and that event has not been taken yet.
            return Ok(());
        }
        self.ready(
            host,
            key,
            conversation.workloads[Side::Active as usize].read_depth,
        )?;
        self.ready_to_send(host, key)?;
        self.plan_on(host, conversation.establish_delay, HostTask::Establish(key));
        Ok(())
    }

    /// The active side completes the handshake and begins to send.
    pub(in crate::simulator) fn establish(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get(&key) else {
            return Ok(());
        };
        let id = agent.id;
        if self.hosts[host].cm.state(id) != Ok(State::RepRcvd) {
            return Ok(());
        }
        let endpoint = self.endpoint_of(host, key)?;
        self.oracle.endpoints[endpoint].agreed = true;
        let machine = &mut self.hosts[host];
        machine
            .cm
            .establish(self.now, id)
            .map_err(|error| violation!("{error}"))?;
        machine.agent_mut(key)?.life.establishes();
        self.drain_cm(host)?;
        self.start_talking(host, key)
    }

    /// The passive side learns that the connection is established.
    pub(super) fn established(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
    ) -> Result<(), Violation> {
        let endpoint = self.endpoint_of(host, key)?;
        let peer = self.oracle.peer(endpoint);
        ensure!(
            peer.is_some_and(|peer| peer.agreed),
            "endpoint {endpoint} is connected, but its peer did not complete the handshake"
        );
        if self.plan.conversations[number].notifies {
            self.ready_to_send(host, key)?;
        }
        self.start_talking(host, key)
    }

    /// The queue pair received data before the RTU arrived.
    pub(in crate::simulator) fn communication_established(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let agent = self.hosts[host].agent(key)?;
        if agent.life.phase != Phase::Accepted {
            return Ok(());
        }
        let id = agent.id;
        self.tally.count("communication established by data");
        let notifying = self.hosts[host].cm.notify_established(self.now, id);
        notifying.map_err(|error| violation!("{error}"))?;
        self.drain_cm(host)
    }

    pub(super) fn rejected(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        side: Side,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        if let (Side::Active, Answer::Reject { data_len }, EventParam::Conn(conn)) =
            (side, self.plan.conversations[number].answer, &event.param)
            && event.status == i32::from(RejectReason::CONSUMER_DEFINED.0)
            && conn.private_data.iter().any(|byte| *byte != 0)
        {
            private_data::check(&conn.private_data, private_data::filler(number, data_len))?;
        }
        if event.status == i32::from(RejectReason::STALE_CONN.0) {
            self.tally.count("rejected as stale");
        }
        self.refused(host, key, number, side, event)
    }

    /// The attempt failed or the connection ended.
    pub(super) fn refused(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        side: Side,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        if side == Side::Active {
            self.conversations[number].refusal = Some((event.event, event.status));
        }
        if event.event != EventType::AddrError {
            self.fail_queue_pair(host, key)?;
        }
        let delay = self.plan.conversations[number].destroy_delay[side as usize];
        self.plan_on(host, delay, HostTask::Destroy(key));
        Ok(())
    }
}
