//! Drives the engines: feeds packets and time, and collects their outputs.

use std::time::Duration;

use portolan_cm::{Query, ResolvedAddress};
use portolan_provider::cm::{CmEvent, EventType};
use portolan_provider::error::errno::EHOSTUNREACH;
use portolan_provider::verbs::{AsyncEvent, QpState};
use portolan_roce::engine::{Completion, Queue};
use portolan_wire::cm::AttributeId;
use portolan_wire::mad::MAD_LEN;
use portolan_wire::rocev2::Packet;
use portolan_wire::{Gid, Psn, Qpn};

use super::agenda::HostTask;
use super::channels::is_of_group;
use super::failure::{Violation, ensure, violation};
use super::host::{Host, Role};
use super::oracle::{Circumstances, Path, Phase};
use super::packet::{Datagram, assemble_mad};
use super::plan::AddressAnswer;
use super::world::World;

/// Longest delay of an answer from the machine's tables, in microseconds.
const QUERY_US_MAX: u64 = 2000;

/// Delay of an answer that is too late.
const LATE_ANSWER: Duration = Duration::from_secs(5);

/// Hop limit of resolved addresses.
const HOP_LIMIT: u8 = 64;

impl Host {
    /// The next time at which an engine wants to be called.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let queue_pairs = self
            .slots
            .values()
            .filter_map(|slot| slot.qp.poll_timeout());
        let due = queue_pairs.chain(self.cm.poll_timeout()).min()?;
        Some(due.max(self.stalled_until))
    }
}

impl World {
    /// Calls the engines of a machine whose timers are due.
    pub(super) fn fire_timers(&mut self, host: usize) -> Result<(), Violation> {
        let now = self.now;
        if self.hosts[host]
            .cm
            .poll_timeout()
            .is_some_and(|due| due <= now)
        {
            self.hosts[host].cm.handle_timeout(now);
            self.drain_cm(host)?;
        }
        let slots = self.hosts[host].slots.iter();
        let due = slots.filter(|(_, slot)| slot.qp.poll_timeout().is_some_and(|due| due <= now));
        let due: Vec<u32> = due.map(|(qpn, _)| *qpn).collect();
        for qpn in due {
            if let Some(slot) = self.hosts[host].slots.get_mut(&qpn) {
                slot.qp.handle_timeout(now);
                self.drain_qp(host, qpn)?;
            }
        }
        Ok(())
    }

    /// A datagram arrives at a machine.
    pub(super) fn arrive(&mut self, host: usize, datagram: Datagram) -> Result<(), Violation> {
        let is_valid = datagram.is_valid()?;
        ensure!(
            is_valid != datagram.is_corrupt,
            "ICRC valid: {is_valid}, packet corrupt: {}",
            datagram.is_corrupt
        );
        if is_valid {
            datagram.check_hidden()?;
        } else {
            self.tally.count("corrupt packet dropped");
            return Ok(());
        }
        let packet = Packet::parse(&datagram.payload)
            .map_err(|error| violation!("the simulator's own packet does not parse: {error}"))?;
        self.tally.digest(self.now, &datagram.payload);
        match packet.mad() {
            Some(_) => self.forward(host, datagram),
            None => self.receive(host, &datagram, &packet),
        }
    }

    /// A management datagram arrives at its connection manager.
    pub(super) fn take_mad(&mut self, host: usize, datagram: &Datagram) -> Result<(), Violation> {
        let packet = Packet::parse(&datagram.payload)
            .map_err(|error| violation!("the simulator's own packet does not parse: {error}"))?;
        let mad = packet.mad();
        let mad = mad.ok_or_else(|| violation!("a packet without a management datagram"))?;
        let is_owed = self.owes_answer(host, mad);
        let machine = &mut self.hosts[host];
        let path = machine.path_from(datagram.source.ip());
        let answers = machine.cm.counters().sent[AttributeId::SidrRep];
        machine.cm.handle_mad(self.now, &path, mad);
        if is_owed {
            let given = machine.cm.counters().sent[AttributeId::SidrRep] - answers;
            ensure!(
                given == 1,
                "a copy of a question got {given} answers, not one"
            );
            self.tally.count("answer of a destroyed id given again");
        }
        self.drain_cm(host)
    }

    /// A packet arrives at its queue pair.
    fn receive(
        &mut self,
        host: usize,
        datagram: &Datagram,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let (now, qpn) = (self.now, packet.bth().dest_qp.value());
        if self.hosts[host].datagram_slots.contains_key(&qpn) {
            return self.take_datagram(host, datagram, packet);
        }
        let Host {
            slots, memory, ram, ..
        } = &mut self.hosts[host];
        let Some(slot) = slots.get_mut(&qpn) else {
            self.tally.count("packet for no queue pair");
            return Ok(());
        };
        if slot.peer != Some(datagram.source.ip()) {
            self.tally.count("packet from another host than the peer");
            return Ok(());
        }
        let place = slot.take_compact(now, memory, packet);
        if place.is_none() {
            slot.qp.handle_packet(now, memory, packet);
        }
        let is_response = packet.bth().opcode.is_response();
        if is_response {
            self.oracle.endpoints[slot.endpoint].silence.heard(now);
            self.oracle.answered(slot.endpoint, now, packet);
        }
        if let Some(place) = place.filter(|place| place.len > 0) {
            self.tally.count("send taken in its short form");
            self.oracle
                .placed_by_peer(slot.endpoint, place.addr, packet.payload())?;
            ram.write(place.addr, packet.payload())?;
        }
        while let Some(placement) = slot.qp.poll_placement() {
            let bytes = placement.bytes(packet.payload());
            let bytes = bytes.ok_or_else(|| violation!("placement beyond the payload"))?;
            match is_response {
                true => self
                    .oracle
                    .placed_by_read(slot.endpoint, placement.addr, bytes)?,
                false => self
                    .oracle
                    .placed_by_peer(slot.endpoint, placement.addr, bytes)?,
            }
            ram.write(placement.addr, bytes)?;
        }
        ensure!(
            slot.qp.poll_atomic().is_none() && slot.qp.poll_memory_operation().is_none(),
            "queue pair {qpn:#x} asks for an atomic, or for a window, that no program posted"
        );
        self.drain_qp(host, qpn)
    }

    /// Takes all outputs of a queue pair.
    pub(super) fn drain_qp(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        self.drain_results(host, qpn)?;
        self.drain_packets(host, qpn)?;
        self.progress(host, qpn)
    }

    pub(super) fn go_on_sending(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        match self.hosts[host].slots.get_mut(&qpn) {
            Some(slot) => slot.will_send = false,
            None => return Ok(()),
        }
        self.drain_qp(host, qpn)
    }

    fn drain_packets(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        let now = self.now;
        for _ in 0..self.hosts[host].burst_packets_max {
            let Host {
                slots, memory, ram, ..
            } = &mut self.hosts[host];
            let Some(slot) = slots.get_mut(&qpn) else {
                return Ok(());
            };
            let Some(bytes) = slot.next_packet(now, memory, ram)? else {
                return self.drain_results(host, qpn);
            };
            let (endpoint, peer) = (slot.endpoint, slot.peer);
            let path = Path {
                mtu: slot.mtu.bytes() as u32,
                window_bytes_max: self.plan.flow.window_max_bytes,
            };
            let to = peer.ok_or_else(|| violation!("endpoint {endpoint} sends without a peer"))?;
            let packet = Packet::parse(&bytes).map_err(|error| {
                violation!("the simulator's own packet does not parse: {error}")
            })?;
            self.oracle.transmitted(endpoint, now, &packet, path)?;
            self.send(host, to, qpn, bytes)?;
            self.drain_results(host, qpn)?;
        }
        if let Some(slot) = self.hosts[host].slots.get_mut(&qpn)
            && !std::mem::replace(&mut slot.will_send, true)
        {
            self.plan_on(host, Duration::from_micros(1), HostTask::Send(qpn));
        }
        Ok(())
    }

    /// Takes the last completions of a queue pair in ERR, then destroys it.
    pub(super) fn drain_last(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        self.drain_results(host, qpn)?;
        if let Some(mut slot) = self.hosts[host].slots.remove(&qpn) {
            slot.poll()?;
            self.tally.queue_pair(slot.qp.counters());
        }
        Ok(())
    }

    /// Takes completions and asynchronous events.
    fn drain_results(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        loop {
            let Some(slot) = self.hosts[host].slots.get_mut(&qpn) else {
                return Ok(());
            };
            if let Some(completion) = slot.qp.poll_completion() {
                self.completed(host, qpn, &completion)?;
            } else if let Some(event) = slot.qp.poll_async_event() {
                self.async_event(host, qpn, event)?;
            } else {
                break;
            }
        }
        match self.hosts[host].slots.get(&qpn) {
            Some(slot) if slot.qp.state() == QpState::Err => {
                self.oracle.check_flushed(slot.endpoint)
            }
            _ => Ok(()),
        }
    }

    fn completed(
        &mut self,
        host: usize,
        qpn: u32,
        completion: &Completion,
    ) -> Result<(), Violation> {
        let Host { slots, ram, .. } = &mut self.hosts[host];
        let Some(slot) = slots.get_mut(&qpn) else {
            return Ok(());
        };
        let (wc, state) = (&completion.wc, slot.qp.state());
        self.trace.note(host, || {
            format!("endpoint {}: {:?} {wc:?}", slot.endpoint, completion.queue)
        });
        self.tally.completion(completion.queue, wc.status);
        match completion.queue {
            Queue::Send => {
                let rnr_retry_count = slot.rnr_retry_count;
                let circumstances = Circumstances {
                    state,
                    rnr_retry_count,
                };
                self.oracle
                    .send_completed(slot.endpoint, wc, circumstances)?;
            }
            Queue::Receive | Queue::Shared(_) => {
                let ram = &*ram;
                let read = |addr, len| ram.read(addr, len);
                let solicited = completion.solicited;
                self.oracle
                    .receive_completed(slot.endpoint, wc, solicited, state, read)?;
            }
        }
        let wakes = slot.complete(completion.queue, *wc, completion.solicited)?;
        if wakes && !std::mem::replace(&mut slot.will_poll, true) {
            let after = self.hosts[host].reaction();
            self.plan_on(host, after, HostTask::Poll(qpn));
        }
        Ok(())
    }

    pub(super) fn poll_completions(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        let Some(slot) = self.hosts[host].slots.get_mut(&qpn) else {
            return Ok(());
        };
        slot.will_poll = false;
        if slot.poll()? {
            slot.will_poll = true;
            self.plan_on(host, Duration::from_micros(1), HostTask::Poll(qpn));
        }
        self.progress(host, qpn)
    }

    fn async_event(&mut self, host: usize, qpn: u32, event: AsyncEvent) -> Result<(), Violation> {
        self.trace
            .note(host, || format!("queue pair {qpn:#x}: {event:?}"));
        let Some(slot) = self.hosts[host].slots.get(&qpn) else {
            return Ok(());
        };
        let (agent, of) = (slot.agent, Qpn::new(qpn));
        match event {
            AsyncEvent::CommEst(number) if number == of => {
                self.communication_established(host, agent)
            }
            AsyncEvent::QpReqErr(number) | AsyncEvent::QpAccessErr(number) if number == of => {
                let state = slot.qp.state();
                ensure!(state == QpState::Err, "{event:?} in {state}");
                self.tally.count("request refused");
                Ok(())
            }
            other => Err(violation!("queue pair {of} raised {other:?}")),
        }
    }

    /// Takes all outputs of the connection manager.
    pub(super) fn drain_cm(&mut self, host: usize) -> Result<(), Violation> {
        loop {
            let cm = &mut self.hosts[host].cm;
            if let Some(transmit) = cm.poll_transmit() {
                ensure!(transmit.mad.len() == MAD_LEN, "a short datagram");
                let psn = Psn::new(self.hosts[host].next_mad_psn());
                let packet = assemble_mad(psn, &transmit.mad)?;
                self.send(host, transmit.path.remote, Qpn::GSI.value(), packet)?;
            } else if let Some(query) = cm.poll_query() {
                self.look_up(host, &query)?;
            } else if let Some(query) = cm.poll_group_query() {
                self.change_groups(host, query)?;
            } else if let Some(event) = cm.poll_event() {
                self.emitted(host, event)?;
            } else {
                return Ok(());
            }
        }
    }

    /// The engine emits an event. Checks that it is legal, then queues it for the program.
    fn emitted(&mut self, host: usize, event: CmEvent) -> Result<(), Violation> {
        self.trace.note(host, || {
            format!("{}: {} status {}", event.id, event.event, event.status)
        });
        self.tally.event(event.event);
        if event.event == EventType::ConnectRequest {
            self.requested(host, &event)?;
        } else if is_of_group(&event) {
            self.membership_changed(host, &event)?;
        } else {
            let (now, in_timewait) = (self.now, self.hosts[host].in_timewait(event.id));
            let agent = self.hosts[host].agents.get_mut(&event.uid.0);
            let agent = agent.filter(|agent| agent.id == event.id);
            let agent = agent.ok_or_else(|| {
                violation!("{} for {}, which has no agent", event.event, event.id)
            })?;
            let (phase, role) = (agent.life.phase, agent.role);
            agent.life.event(now, event.event, in_timewait)?;
            if let (Phase::Inquiring, Role::Party { inquiry, .. }) = (phase, role) {
                self.answered(inquiry, &event)?;
            }
        }
        self.queue_event(host, event)
    }

    /// The engine asks the machine's routing and neighbour tables for a route.
    fn look_up(&mut self, host: usize, query: &Query) -> Result<(), Violation> {
        let Query::Address {
            id,
            query,
            source,
            destination,
            ..
        } = *query;
        let machine = &mut self.hosts[host];
        let asker = machine.agents.values().find(|agent| agent.id == id);
        let asker = asker.ok_or_else(|| violation!("{id} asks for an address but has no agent"))?;
        let plan = match asker.role {
            Role::Talker { conversation, .. } => {
                self.plan.conversations[conversation].address_answer
            }
            Role::Party { .. } => AddressAnswer::Found,
            Role::Listener { .. } | Role::Service { .. } | Role::Member { .. } => {
                return Err(violation!("an id asks for an address but needs none"));
            }
        };
        let port = source.map_or(0, |source| source.port());
        let found = ResolvedAddress {
            source: machine.socket_addr(port),
            destination,
            device: machine.device,
            dgid: Gid::from_ip(destination.ip()),
            hop_limit: HOP_LIMIT,
            neighbour: None,
        };
        let soon = machine.rng.micros(0, QUERY_US_MAX);
        let (answer, after) = match plan {
            AddressAnswer::Found => (Ok(found), soon),
            AddressAnswer::Unreachable => (Err(EHOSTUNREACH), soon),
            AddressAnswer::Late => (Ok(found), LATE_ANSWER),
        };
        self.plan_on(host, after, HostTask::AnswerQuery { id, query, answer });
        Ok(())
    }
}
