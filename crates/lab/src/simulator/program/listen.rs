//! Listeners, the programs' events, and incoming connection requests.

use portolan_cm::State;
use portolan_provider::cm::{CmEvent, EventParam, EventType, Service, UserId};
use portolan_provider::verbs::QpType;
use portolan_wire::PortSpace;

use super::private_data;
use crate::simulator::AgentKey;
use crate::simulator::agenda::HostTask;
use crate::simulator::channels::{Channel, is_of_group};
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::{Agent, Role};
use crate::simulator::oracle::{Life, Phase};
use crate::simulator::plan::Side;
use crate::simulator::world::{Child, World};

/// The service of connection ids.
pub(super) const SERVICE: Service = Service {
    port_space: PortSpace::Tcp,
    qp_type: QpType::Rc,
};

/// A `max_timewait_remembered` that no run exceeds.
pub(super) const REMEMBERED_ENOUGH: usize = 1024;

impl World {
    /// Opens the listeners of a machine that has just started.
    pub(in crate::simulator) fn open_listeners(&mut self, host: usize) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let (now, listeners) = (self.now, plan.listeners.iter().enumerate());
        let open = |close_at: Option<_>| close_at.is_none_or(|close_at| close_at > now);
        for (number, listener) in listeners.filter(|(_, plan)| plan.host == host) {
            if !open(listener.close_at) {
                continue;
            }
            let key = self.next_key();
            let machine = &self.hosts[host];
            let local = match listener.is_specific {
                true => machine.socket_addr(listener.port),
                false => machine.wildcard(listener.port),
            };
            let claim = self.claim(host, SERVICE.port_space, local, true)?;
            let machine = &mut self.hosts[host];
            let fail =
                |error: &dyn std::fmt::Display| violation!("no listener on {local}: {error}");
            let id = machine
                .cm
                .create_id(UserId(key), SERVICE)
                .map_err(|error| fail(&error))?;
            let device = listener.is_specific.then_some(machine.device);
            machine
                .cm
                .bind(now, id, local, device)
                .map_err(|error| fail(&error))?;
            let listening = machine.cm.listen(now, id, listener.backlog);
            listening.map_err(|error| fail(&error))?;
            let life = Life::new(Phase::Listening, &plan.cm);
            let role = Role::Listener { listener: number };
            let agent = Agent::new(id, role, life, Some(claim));
            machine.agents.insert(key, agent);
        }
        Ok(())
    }

    pub(in crate::simulator) fn close_listener(&mut self, number: usize) -> Result<(), Violation> {
        let host = self.plan.listeners[number].host;
        let agents = self.hosts[host].agents.iter();
        let mut of_listener =
            agents.filter(|(_, agent)| agent.role == Role::Listener { listener: number });
        match of_listener.next().map(|(key, _)| *key) {
            Some(key) => self.destroy(host, key),
            None => Ok(()),
        }
    }

    /// The engine reports a connection request. It must have been sent, and not been reported
    /// before.
    pub(in crate::simulator) fn requested(
        &mut self,
        host: usize,
        event: &CmEvent,
    ) -> Result<(), Violation> {
        let EventParam::Conn(conn) = &event.param else {
            return self.asked(host, event);
        };
        let (number, asker) = private_data::names(&conn.private_data)?;
        let (machine, endpoint) = (&self.hosts[host], self.oracle.endpoints.get(asker));
        let endpoint = endpoint
            .filter(|endpoint| (endpoint.conversation, endpoint.side) == (number, Side::Active))
            .ok_or_else(|| violation!("a connection request that was never sent"))?;
        let plan = &self.plan.conversations[number];
        let sent = private_data::compose(number, asker, plan.private_data_extra);
        private_data::check(&conn.private_data, sent.iter().copied())?;
        ensure!(
            conn.qp_num == endpoint.qpn,
            "a request with the wrong queue pair number"
        );
        let listener = machine.agents.get(&event.uid.0).map(|agent| agent.role);
        let Some(Role::Listener { listener }) = listener else {
            return Err(violation!("a connection request for a closed listener"));
        };
        let listener = self.plan.listeners[listener];
        ensure!(
            (listener.host, listener.port) == (plan.hosts[Side::Passive as usize], plan.port),
            "a connection request was reported to the wrong listener"
        );
        self.check_first_report(host, number, asker)?;
        self.conversations[number].children.push(Child {
            host,
            boot: self.hosts[host].boot,
            asker,
            id: event.id,
            refused_until: None,
        });
        Ok(())
    }

    fn check_first_report(
        &self,
        host: usize,
        number: usize,
        asker: usize,
    ) -> Result<(), Violation> {
        let machine = &self.hosts[host];
        let remembers = self.remembers();
        let same =
            |child: &&Child| (child.host, child.boot, child.asker) == (host, machine.boot, asker);
        for child in self.conversations[number].children.iter().filter(same) {
            if let Some(until) = child.refused_until {
                ensure!(
                    until <= self.now || !remembers,
                    "a copy of a request made a new connection before {until:?}, the end of the \
                     time-wait of the old one"
                );
            } else if let Ok(state) = machine.cm.state(child.id) {
                ensure!(
                    state == State::Closed,
                    "a copy of a request made a second connection; the first is {}",
                    state.name()
                );
            }
        }
        Ok(())
    }

    /// The program takes the next event of a channel.
    pub(in crate::simulator) fn take_event(
        &mut self,
        host: usize,
        channel: Channel,
    ) -> Result<(), Violation> {
        let Some(event) = self.hosts[host].channels.take(channel)? else {
            return Ok(());
        };
        if event.event == EventType::ConnectRequest {
            return self.take_request(host, &event);
        }
        if is_of_group(&event) {
            // The program has learned of the request; it rejects it later.
            return Ok(());
        }
        let key = event.uid.0;
        let agent = self.hosts[host].agent(key)?;
        let (conversation, side) = match agent.role {
            Role::Talker { conversation, side } => (conversation, side),
            Role::Party { inquiry, .. } => return self.take_answer(host, key, inquiry, &event),
            Role::Listener { .. } | Role::Service { .. } | Role::Member { .. } => {
                return Err(violation!("{:?} got {}", agent.role, event.event));
            }
        };
        match event.event {
            EventType::AddrResolved => self.resolve_route(host, key),
            EventType::RouteResolved => self.connect(host, key, conversation),
            EventType::ConnectResponse => self.replied(host, key, conversation, &event),
            EventType::Established => self.established(host, key, conversation),
            EventType::Disconnected => self.disconnected(host, key, conversation, side),
            EventType::TimewaitExit => self.timewait_over(host, key, conversation, side),
            EventType::Rejected => self.rejected(host, key, conversation, side, &event),
            EventType::AddrError | EventType::Unreachable => {
                self.refused(host, key, conversation, side, &event)
            }
            other => Err(violation!("{other} at a connecting program")),
        }
    }

    fn take_request(&mut self, host: usize, event: &CmEvent) -> Result<(), Violation> {
        let EventParam::Conn(conn) = &event.param else {
            return self.take_question(host, event);
        };
        let (number, _) = private_data::names(&conn.private_data)?;
        let key: AgentKey = self.next_key();
        let machine = &mut self.hosts[host];
        machine.cm.request_taken(event.id);
        let life = Life::new(Phase::Requested, &self.plan.cm);
        let role = Role::Talker {
            conversation: number,
            side: Side::Passive,
        };
        machine
            .agents
            .insert(key, Agent::new(event.id, role, life, None));
        self.conversations[number].agents[Side::Passive as usize] = Some((host, key));
        let delay = self.plan.conversations[number].answer_delay;
        self.plan_on(host, delay, HostTask::Answer(key));
        Ok(())
    }
}
