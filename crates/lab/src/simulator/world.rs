//! The world of one run: machines, the network between them, and the clock.

use std::rc::Rc;
use std::time::Duration;

use portolan_provider::cm::EventType;

use super::AgentKey;
use super::agenda::{Agenda, HostTask, Task};
use super::failure::{Violation, ensure, violation};
use super::host::Host;
use super::network::Network;
use super::oracle::{EndpointIndex, Inquiry, Oracle};
use super::packet::Datagram;
use super::plan::Plan;
use super::port_group::CLAIM_PAUSE;
use super::port_group::{PortGroup, Process};
use super::report::Tally;
use super::rng::Rng;
use super::trace::Trace;

/// Limit on the steps of a run, to detect one that does not end.
const STEPS_MAX: u64 = 3_000_000;

/// Limit on steps at one time, to detect a timer that is always due again.
const STEPS_AT_ONCE_MAX: u64 = 200_000;

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) plan: Rc<Plan>,
    pub(super) agenda: Agenda,
    pub(super) network: Network,
    pub(super) hosts: Vec<Host>,
    pub(super) port_groups: Vec<PortGroup>,
    pub(super) oracle: Oracle,
    pub(super) conversations: Vec<Conversation>,
    pub(super) inquiries: Vec<Inquiry>,
    pub(super) trace: Trace,
    pub(super) tally: Tally,
    pub(super) rng: Rng,
    next_key: AgentKey,
    next_wr_id: u64,
}

/// State of a conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The ids of its two sides with their machines. The passive side may have had several.
    pub(super) agents: [Option<(usize, AgentKey)>; 2],
    pub(super) endpoints: [Option<EndpointIndex>; 2],
    /// The event that ended the active side's attempt, and its status.
    pub(super) refusal: Option<(EventType, i32)>,
    /// Both sides have sent and received everything.
    pub(super) is_complete: bool,
    /// Sides that saw the end of the connection.
    pub(super) disconnected: [bool; 2],
    pub(super) children: Vec<Child>,
}

/// A request that was reported, and its id.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) host: usize,
    pub(super) boot: u32,
    pub(super) asker: EndpointIndex,
    pub(super) id: portolan_provider::cm::IdNumber,
    /// Set once it is rejected or destroyed. The same request must not be reported again before this time.
    pub(super) refused_until: Option<Duration>,
}

impl World {
    pub(super) fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Rc::new(Plan::draw(&mut rng.fork()));
        let mut port_groups: Vec<PortGroup> = Vec::new();
        let mut hosts = Vec::new();
        for host in &plan.hosts {
            if host.group == port_groups.len() {
                port_groups.push(PortGroup::new(host.addr, &mut rng));
            }
            let group = &mut port_groups[host.group];
            // The first process is the coordinator.
            let first = Process {
                host: hosts.len(),
                boot: 0,
            };
            group.coordinator.get_or_insert(first);
            let block = group.next_block();
            hosts.push(Host::new(block, host, &plan.cm, 0, rng.fork()));
        }
        let network = Network::new(port_groups.len(), plan.faults.clone(), rng.fork());
        let conversations = plan
            .conversations
            .iter()
            .map(|_| Conversation::default())
            .collect();
        let inquiries = plan.inquiries.iter().map(|_| Inquiry::default()).collect();
        Self {
            now: Duration::ZERO,
            agenda: Agenda::default(),
            network,
            hosts,
            port_groups,
            oracle: Oracle::default(),
            conversations,
            inquiries,
            trace,
            tally: Tally::default(),
            rng,
            next_key: 1,
            next_wr_id: 1,
            plan,
        }
    }

    /// Runs until nothing is left to do, then destroys everything and checks that nothing is left.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        self.announce();
        self.schedule_plan();
        for host in 0..self.hosts.len() {
            self.open_all(host)?;
        }
        self.settle()?;
        self.check_expectations()?;
        self.check_outcomes()?;
        self.take_down()?;
        self.settle()?;
        self.check_nothing_left()
    }

    pub(super) fn next_key(&mut self) -> AgentKey {
        self.next_key += 1;
        self.next_key
    }

    pub(super) fn next_wr_id(&mut self) -> u64 {
        self.next_wr_id += 1;
        self.next_wr_id
    }

    /// Schedules a task of a machine's current incarnation.
    pub(super) fn plan_on(&mut self, host: usize, after: Duration, task: HostTask) {
        let boot = self.hosts[host].boot;
        self.agenda
            .add(self.now + after, Task::OnHost { host, boot, task });
    }

    /// Hands a packet to the network.
    pub(super) fn send(
        &mut self,
        from: usize,
        to: std::net::IpAddr,
        flow_number: u32,
        packet: Vec<u8>,
    ) -> Result<(), Violation> {
        let source = &mut self.hosts[from];
        let (addr, ip_id) = (source.addr, source.next_ip_id());
        let datagram = Datagram::seal(addr, to, flow_number, ip_id, packet)?;
        let from_group = source.group;
        let to = self.group_at(to);
        let to = to.ok_or_else(|| violation!("h{from} sends to a host that does not exist"))?;
        self.tally.sent(&datagram.payload);
        let traced = self.trace.is_on().then(|| datagram.payload.clone());
        let fate = self.network.send(self.now, from_group, to, datagram);
        if let Some(bytes) = traced {
            self.trace.packet(from, to, &bytes, fate.note);
        }
        for (at, datagram) in fate.arrivals.into_iter().flatten() {
            self.agenda.add(at, Task::Arrive { to, datagram });
        }
        Ok(())
    }

    /// Opens the listeners and services of a machine that has just started.
    pub(super) fn open_all(&mut self, host: usize) -> Result<(), Violation> {
        if !self.may_claim(host) {
            self.plan_on(host, CLAIM_PAUSE, HostTask::Open);
            return Ok(());
        }
        self.open_listeners(host)?;
        self.open_services(host)
    }

    fn announce(&self) {
        let plan = &self.plan;
        self.trace.note(0, || {
            format!(
                "{:?}: {} hosts, {:?}",
                plan.class,
                plan.hosts.len(),
                plan.faults
            )
        });
        for (number, plan) in plan.conversations.iter().enumerate() {
            self.trace.note(plan.hosts[0], || {
                let ops = plan.workloads.each_ref().map(|workload| workload.ops.len());
                format!(
                    "conversation {number}: to h{} port {} at {:?}, {:?}, {ops:?} requests, {:?}, \
                     expects {:?}",
                    plan.hosts[1], plan.port, plan.start_at, plan.answer, plan.ending, plan.expect
                )
            });
        }
    }

    fn schedule_plan(&mut self) {
        let plan = self.plan.clone();
        for (number, conversation) in plan.conversations.iter().enumerate() {
            let start_at = conversation.start_at;
            self.agenda.add(start_at, Task::StartConversation(number));
            if let Some(revocation) = conversation.revocation {
                self.agenda
                    .add(start_at + revocation.after, Task::Revoke(number));
            }
            if let Some(after) = conversation.ending.time() {
                self.agenda.add(start_at + after, Task::End(number));
            }
        }
        for (number, listener) in plan.listeners.iter().enumerate() {
            if let Some(at) = listener.close_at {
                self.agenda.add(at, Task::CloseListener(number));
            }
        }
        for (number, inquiry) in plan.inquiries.iter().enumerate() {
            let start_at = inquiry.start_at;
            self.agenda.add(start_at, Task::StartInquiry(number));
            if let Some(after) = inquiry.withdraw_after {
                self.agenda
                    .add(start_at + after, Task::WithdrawInquiry(number));
            }
        }
        for (number, service) in plan.services.iter().enumerate() {
            if let Some(at) = service.close_at {
                self.agenda.add(at, Task::CloseService(number));
            }
        }
        for (number, member) in plan.members.iter().enumerate() {
            self.agenda.add(member.start_at, Task::StartMember(number));
        }
        for (number, crash) in plan.crashes.iter().enumerate() {
            self.agenda.add(crash.at, Task::Crash(number));
            self.agenda.add(crash.restart_at, Task::Restart(number));
        }
        for (number, stall) in plan.stalls.iter().enumerate() {
            self.agenda.add(stall.at, Task::Stall(number));
        }
        for (number, partition) in plan.partitions.iter().enumerate() {
            self.agenda.add(partition.at, Task::Cut(number));
            if let Some(at) = partition.heal_at {
                self.agenda.add(at, Task::Heal(number));
            }
        }
    }

    /// Runs until no task is scheduled and no timer runs.
    fn settle(&mut self) -> Result<(), Violation> {
        let mut steps_at_once = 0;
        for _ in 0..STEPS_MAX {
            let timer = self.hosts.iter().enumerate();
            let timer = timer
                .filter_map(|(index, host)| Some((host.next_timeout()?, index)))
                .min();
            let (at, timer) = match (self.agenda.next_at(), timer) {
                (None, None) => return Ok(()),
                (Some(at), Some((due, host))) if due < at => (due, Some(host)),
                (Some(at), _) => (at, None),
                (None, Some((due, host))) => (due, Some(host)),
            };
            steps_at_once = if at > self.now { 0 } else { steps_at_once + 1 };
            ensure!(
                steps_at_once < STEPS_AT_ONCE_MAX,
                "a timer is always due again"
            );
            self.now = self.now.max(at);
            self.trace.set_now(self.now);
            match timer {
                Some(host) => self.fire_timers(host)?,
                None => self.next_task()?,
            }
        }
        Err(violation!("the run does not end"))
    }

    fn next_task(&mut self) -> Result<(), Violation> {
        match self.agenda.pop() {
            None => Ok(()),
            Some(Task::Arrive { to, datagram }) => self.reach(to, datagram),
            Some(Task::OnHost { host, boot, task }) => {
                if self.hosts[host].is_stalled(self.now) {
                    let until = self.hosts[host].stalled_until;
                    self.agenda.add(until, Task::OnHost { host, boot, task });
                    return Ok(());
                }
                if self.hosts[host].boot != boot || !self.hosts[host].is_up {
                    return Ok(());
                }
                self.audit(host)?;
                self.on_host(host, task)
            }
            Some(Task::StartConversation(number)) => self.start_conversation(number),
            Some(Task::GiveUp(number)) => {
                (0..self.hosts.len()).try_for_each(|host| self.audit(host))?;
                self.give_up(number)
            }
            Some(Task::End(number)) => self.end_as_planned(number),
            Some(Task::Revoke(number)) => self.revoke(number),
            Some(Task::CloseListener(number)) => self.close_listener(number),
            Some(Task::StartInquiry(number)) => self.start_inquiry(number),
            Some(Task::WithdrawInquiry(number)) => self.withdraw_inquiry(number),
            Some(Task::StartMember(number)) => self.start_member(number),
            Some(Task::CloseService(number)) => self.close_service(number),
            Some(Task::Stall(number)) => {
                self.stall(number);
                Ok(())
            }
            Some(Task::Crash(number)) => self.crash(number),
            Some(Task::Restart(number)) => self.restart(number),
            Some(Task::Cut(number)) => {
                self.set_cut(number, true);
                Ok(())
            }
            Some(Task::Heal(number)) => {
                self.set_cut(number, false);
                Ok(())
            }
        }
    }

    fn on_host(&mut self, host: usize, task: HostTask) -> Result<(), Violation> {
        match task {
            HostTask::TakeEvent(channel) => self.take_event(host, channel),
            HostTask::Migrate { key, to } => {
                self.migrate(host, key, to);
                Ok(())
            }
            HostTask::TakeDatagram(datagram) => self.take_mad(host, &datagram),
            HostTask::StandForElection => {
                self.stand_for_election(host);
                Ok(())
            }
            HostTask::Register => self.register(host),
            HostTask::SeeDeparture(process) => {
                self.see_departure(host, process);
                Ok(())
            }
            HostTask::TakeDeathNotice(block) => self.take_death_notice(host, block),
            HostTask::Open => self.open_all(host),
            HostTask::AnswerQuery { id, query, answer } => {
                // The id may be gone.
                let _ = self.hosts[host]
                    .cm
                    .address_resolved(self.now, id, query, answer);
                self.drain_cm(host)
            }
            HostTask::Answer(key) => self.answer(host, key),
            HostTask::Join { key, number } => self.join(host, key, number),
            HostTask::Leave(name) => self.leave(host, name),
            HostTask::AnswerJoin {
                name,
                membership,
                succeeds,
                leaves,
            } => self.answer_join(host, (name, membership), succeeds, leaves),
            HostTask::Reply(key) => self.reply(host, key),
            HostTask::Establish(key) => self.establish(host, key),
            HostTask::PostSends(key) => self.post_sends(host, key),
            HostTask::PostReceives(key) => self.post_receives(host, key),
            HostTask::Disconnect(key) => self.disconnect(host, key),
            HostTask::Destroy(key) => self.destroy(host, key),
            HostTask::Send(qpn) => self.go_on_sending(host, qpn),
            HostTask::Poll(qpn) => self.poll_completions(host, qpn),
        }
    }

    /// Checks that nothing of a machine is overdue.
    pub(super) fn audit(&self, host: usize) -> Result<(), Violation> {
        let host = &self.hosts[host];
        self.check_departures(host.group)?;
        for agent in host.agents.values() {
            agent.life.check(self.now, host.stalled_for)?;
        }
        for join in host.joins.values().filter(|join| !join.is_told) {
            let due = join.due + host.stalled_for;
            ensure!(
                self.now <= due,
                "the answer to member {} is overdue since {due:?}",
                join.member
            );
        }
        for slot in host.slots.values() {
            let (state, late) = (slot.qp.state(), host.lateness());
            self.oracle
                .check_silence(slot.endpoint, self.now, state, late)?;
        }
        Ok(())
    }
}
