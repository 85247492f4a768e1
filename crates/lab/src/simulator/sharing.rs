//! The processes of a port group: claims, forwarding, and the consequences of a death.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_cm::MadPath;
use portolan_cm::ports::BindOptions;
use portolan_provider::error::Cause;
use portolan_wire::PortSpace;
use portolan_wire::rocev2::Packet;

use super::agenda::{HostTask, Task};
use super::failure::{Violation, ensure, violation};
use super::host::Agent;
use super::library::{Mutant, is_planted};
use super::packet::Datagram;
use super::port_group::{Claim, Departure, Process, Recipient};
use super::world::World;

/// How long the coordinator takes to forward a datagram.
const FORWARD_DELAY: Duration = Duration::from_micros(20);

/// Longest delay before a member stands for election or registers, in microseconds.
const ELECTION_US_MAX: u64 = 50_000;

/// Longest time in which a coordinator that does not stall notices a death.
const DEPARTURE_SEEN_MAX: Duration = Duration::from_secs(10);

/// A process without a host.
const RIVAL: Process = Process {
    host: usize::MAX,
    boot: 0,
};

impl World {
    pub(super) fn process(&self, host: usize) -> Process {
        let boot = self.hosts[host].boot;
        Process { host, boot }
    }

    /// Whether the coordinator can answer a process's claim at this moment. Otherwise the claim is
    /// repeated after [`CLAIM_PAUSE`].
    pub(super) fn may_claim(&self, host: usize) -> bool {
        let group = &self.port_groups[self.hosts[host].group];
        let coordinator = group
            .coordinator
            .map(|coordinator| &self.hosts[coordinator.host]);
        group.is_ready() && coordinator.is_some_and(|coordinator| !coordinator.is_stalled(self.now))
    }

    /// Claims an address from the coordinator, optionally to listen. This must succeed unless a
    /// living process has the address. Port 0 is replaced by a free port.
    pub(super) fn claim(
        &mut self,
        host: usize,
        space: PortSpace,
        mut local: SocketAddr,
        listens: bool,
    ) -> Result<Claim, Violation> {
        let options = BindOptions {
            af_only: local.is_ipv4(),
            ..BindOptions::default()
        };
        let (process, seed) = (self.process(host), self.hosts[host].rng.next_u32());
        let ports = &mut self.port_groups[self.hosts[host].group].ports;
        let bound = ports.bind(process, space, local, options, seed);
        let bound = bound.map_err(|error| violation!("h{host}: {space:?} {local}: {error}"))?;
        local.set_port(bound.port);
        // Another process must find the port taken, both bound and listened on.
        for round in 0..2 {
            let rival = ports.bind(RIVAL, space, local, options, seed);
            ensure!(
                matches!(rival, Err(Cause::AddressInUse { .. })),
                "port {} was given out twice",
                bound.port
            );
            if listens && round == 0 {
                let listening = ports.listen(bound.binding);
                listening.map_err(|error| violation!("h{host}: {local}: {error}"))?;
            }
        }
        let binding = Some(bound.binding);
        Ok(Claim {
            space,
            local,
            options,
            listens,
            binding,
        })
    }

    pub(super) fn release(&mut self, host: usize, claim: &Claim) {
        if let Some(binding) = claim.binding {
            let group = self.hosts[host].group;
            self.port_groups[group].ports.release(binding);
        }
    }

    /// A datagram arrives at an address. The kernel gives it to the process whose block contains
    /// the queue pair number; datagrams for queue pair 1 go to the coordinator.
    pub(super) fn reach(&mut self, group: usize, datagram: Datagram) -> Result<(), Violation> {
        let block = datagram.destination_block();
        let receiver = match block {
            Some(0) => self.port_groups[group]
                .coordinator
                .map(|coordinator| coordinator.host),
            Some(block) => self.member(group, block),
            None => None,
        };
        let Some(host) = receiver else {
            let is_kept = block == Some(0)
                && self.has_members(group)
                && self.port_groups[group].keep(datagram);
            self.tally.count(match is_kept {
                true => "datagram kept for the next coordinator",
                false => "packet for no process",
            });
            return Ok(());
        };
        let machine = &mut self.hosts[host];
        if !machine.is_stalled(self.now) {
            self.audit(host)?;
            return self.arrive(host, datagram);
        }
        if machine.has_socket_room() {
            let (until, to) = (machine.stalled_until, group);
            self.agenda.add(until, Task::Arrive { to, datagram });
        } else {
            self.tally.count("socket buffer full");
        }
        Ok(())
    }

    /// The coordinator receives a management datagram and handles or forwards it.
    pub(super) fn forward(&mut self, host: usize, datagram: Datagram) -> Result<(), Violation> {
        let group = self.hosts[host].group;
        let packet = Packet::parse(&datagram.payload);
        let mad = packet.as_ref().ok().and_then(Packet::mad);
        let recipient = mad.map(|mad| self.port_groups[group].recipient(mad));
        let to = match recipient {
            Some(Recipient::Coordinator) => vec![host],
            Some(Recipient::Everyone) => self.members(group),
            Some(Recipient::Block(block)) => match self.member(group, block) {
                Some(member) => vec![member],
                // The process with this block may not have registered again yet.
                None if !self.port_groups[group].unregistered.is_empty() => Vec::new(),
                // The process is dead: the coordinator answers its peers.
                None => vec![host],
            },
            Some(Recipient::Process(process)) => {
                let is_alive = self.process(process.host) == process;
                let is_known = self.port_groups[group].dead_members.contains_key(&process);
                ensure!(
                    is_alive || is_known,
                    "a request goes to {process}, which is dead"
                );
                is_alive.then_some(process.host).into_iter().collect()
            }
            Some(Recipient::Nobody) | None => Vec::new(),
        };
        if to.is_empty() {
            self.tally.count("datagram for no member");
        }
        for to in to {
            if to == host {
                self.take_mad(host, &datagram)?;
                continue;
            }
            self.tally.count("datagram forwarded");
            let task = HostTask::TakeDatagram(datagram.clone());
            self.plan_on(to, FORWARD_DELAY, task);
        }
        Ok(())
    }

    /// A process died. If it was the coordinator, the others stand for election; otherwise the
    /// coordinator will notice the death.
    pub(super) fn depart(&mut self, process: Process, block: u8) {
        let index = self.hosts[process.host].group;
        let seed = self.rng.next_u64();
        let group = &mut self.port_groups[index];
        group.unregistered.remove(&process);
        if let Some(coordinator) = group
            .coordinator
            .filter(|coordinator| *coordinator != process)
        {
            let at = self.now;
            if group.dead_members.values().any(|other| other.at == at) {
                self.tally.count("deaths at one instant");
            }
            group.dead_members.insert(process, Departure { at, block });
            let after = self.hosts[coordinator.host].reaction();
            self.plan_on(coordinator.host, after, HostTask::SeeDeparture(process));
            return;
        }
        if group.coordinator == Some(process) {
            group.lose_coordinator(seed);
            for host in self.members(index) {
                for agent in self.hosts[host].agents.values_mut() {
                    if let Some(claim) = &mut agent.claim {
                        claim.binding = None;
                    }
                }
                self.stand(host);
            }
        }
        if !self.has_members(index) {
            // The sockets died with their last process.
            self.port_groups[index].waiting.clear();
        }
    }

    /// Schedules the process to stand for election, which matters if there is no coordinator.
    pub(super) fn stand(&mut self, host: usize) {
        let after = self.rng.micros(0, ELECTION_US_MAX);
        self.plan_on(host, after, HostTask::StandForElection);
    }

    pub(super) fn stand_for_election(&mut self, host: usize) {
        let (process, index) = (self.process(host), self.hosts[host].group);
        let members = self.members(index);
        let group = &mut self.port_groups[index];
        if group.coordinator.is_some() {
            return;
        }
        group.coordinator = Some(process);
        let waiting = std::mem::take(&mut group.waiting);
        self.trace.note(host, || "is the coordinator".into());
        self.tally.count("coordinator elected");
        for host in members {
            let process = self.process(host);
            self.port_groups[index].unregistered.insert(process);
            let after = self.rng.micros(0, ELECTION_US_MAX);
            self.plan_on(host, after, HostTask::Register);
        }
        for datagram in waiting {
            let to = index;
            self.agenda.add(self.now, Task::Arrive { to, datagram });
        }
    }

    /// A process registers its claims with the new coordinator. Nobody else can have got them
    /// meanwhile.
    pub(super) fn register(&mut self, host: usize) -> Result<(), Violation> {
        let process = self.process(host);
        let machine = &mut self.hosts[host];
        let group = &mut self.port_groups[machine.group];
        if group.coordinator.is_none() || !group.unregistered.remove(&process) {
            return Ok(());
        }
        for claim in machine.agents.values_mut().filter_map(Agent::claim_mut) {
            let (space, local, options) = (claim.space, claim.local, claim.options);
            let seed = machine.rng.next_u32();
            let bound = group.ports.bind(process, space, local, options, seed);
            let bound = bound.map_err(|error| violation!("h{host} lost its {local}: {error}"))?;
            if claim.listens {
                let listening = group.ports.listen(bound.binding);
                listening.map_err(|error| violation!("h{host} lost its {local}: {error}"))?;
            }
            claim.binding = Some(bound.binding);
        }
        Ok(())
    }

    /// The coordinator notices a member's death: it frees the ports and tells the others.
    pub(super) fn see_departure(&mut self, coordinator: usize, process: Process) {
        let index = self.hosts[coordinator].group;
        let group = &mut self.port_groups[index];
        if group.behind.contains(&process) {
            return;
        }
        group.ports.release_owner(&process);
        let departure = group.dead_members.remove(&process);
        self.tally.count("ports of a dead process freed");
        if let Some(Departure { block, .. }) = departure {
            self.announce_death(index, block);
        }
    }

    /// The coordinator tells its members that no process has a block. Members that are dead, which
    /// the coordinator has not noticed, cannot be told.
    fn announce_death(&mut self, index: usize, block: u8) {
        // A successor got the same block after the announcement.
        if self.member(index, block).is_some() {
            return;
        }
        let group = &mut self.port_groups[index];
        for process in group.dead_members.keys() {
            self.tally.count("news of a death for a dead process");
            if is_planted(Mutant::DeadMemberStaysBehind) {
                group.behind.insert(*process);
            }
        }
        for host in self.members(index) {
            self.plan_on(host, FORWARD_DELAY, HostTask::TakeDeathNotice(block));
        }
    }

    /// A process learns that no process has a block: its connections to that block have ended.
    pub(super) fn take_death_notice(&mut self, host: usize, block: u8) -> Result<(), Violation> {
        self.tally.count("news of a death");
        let machine = &mut self.hosts[host];
        let addr = machine.addr;
        let is_dead = |path: &MadPath, of: u8| of == block && path.remote == addr;
        for id in machine.cm.ids_with_peer(is_dead) {
            // Handling the previous id may have destroyed this one.
            let _ = self.hosts[host].cm.peer_died(self.now, id);
            self.drain_cm(host)?;
        }
        Ok(())
    }

    /// Checks that the coordinator notices deaths in time, also many at once.
    pub(super) fn check_departures(&self, group: usize) -> Result<(), Violation> {
        let group = &self.port_groups[group];
        let late = group.coordinator.map_or(Duration::ZERO, |coordinator| {
            self.hosts[coordinator.host].stalled_for
        });
        for (process, departure) in &group.dead_members {
            ensure!(
                self.now <= departure.at + DEPARTURE_SEEN_MAX + late,
                "the coordinator has not noticed the death of {process}, block {}, at {:?}",
                departure.block,
                departure.at
            );
        }
        Ok(())
    }

    /// The living process with a block.
    fn member(&self, group: usize, block: u8) -> Option<usize> {
        let mut hosts = self.hosts.iter();
        hosts.position(|host| host.is_up && (host.group, host.block) == (group, block))
    }

    fn members(&self, group: usize) -> Vec<usize> {
        let hosts = self.hosts.iter().enumerate();
        let living = hosts.filter(|(_, host)| host.is_up && host.group == group);
        living.map(|(index, _)| index).collect()
    }

    fn has_members(&self, group: usize) -> bool {
        !self.members(group).is_empty()
    }

    /// The group with an address.
    pub(super) fn group_at(&self, addr: IpAddr) -> Option<usize> {
        self.port_groups.iter().position(|group| group.addr == addr)
    }
}

impl Agent {
    fn claim_mut(&mut self) -> Option<&mut Claim> {
        self.claim.as_mut()
    }
}
