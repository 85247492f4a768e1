//! Drives the engines of an exchange: feeds packets and collects their outputs.

use portolan_provider::address::ip_to_gid;
use portolan_provider::verbs::{AsyncEvent, QpState, QpType};
use portolan_roce::engine::{Completion, Queue};
use portolan_wire::rocev2::Packet;

use super::oracle::EndIndex;
use super::{Exchange, TRACED_FROM, Task};
use crate::simulator::datagrams::GRH_LEN;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::packet::Datagram;
use crate::simulator::report::Tally;

impl Exchange {
    /// A packet arrives at a queue pair.
    pub(super) fn arrive(
        &mut self,
        index: EndIndex,
        datagram: &Datagram,
        tally: &mut Tally,
    ) -> Result<(), Violation> {
        if !datagram.is_valid()? {
            ensure!(datagram.is_corrupt, "the ICRC of a good packet is wrong");
            return Ok(());
        }
        ensure!(
            !datagram.is_corrupt,
            "the ICRC of a corrupt packet is right"
        );
        let packet = Packet::parse(&datagram.payload)
            .map_err(|error| violation!("the simulator's own packet does not parse: {error}"))?;
        tally.digest(self.now, &datagram.payload);
        let end = &mut self.ends[index];
        let machine = &mut self.machines[end.host];
        end.qp.handle_packet(self.now, &machine.memory, &packet);
        let header = network_header(datagram);
        let is_response = packet.bth().opcode.is_response();
        while let Some(placement) = end.qp.poll_grh_placement() {
            let bytes = header.get(placement.source_range);
            let bytes = bytes.ok_or_else(|| violation!("placement beyond the header"))?;
            self.oracle
                .placed(end.host, index, placement.addr, bytes.len())?;
            machine.ram.write(placement.addr, bytes)?;
        }
        while let Some(placement) = end.qp.poll_placement() {
            let bytes = placement.bytes(packet.payload());
            let bytes = bytes.ok_or_else(|| violation!("placement beyond the payload"))?;
            // The result of an atomic is checked when it completes.
            if !is_response {
                self.oracle
                    .placed(end.host, index, placement.addr, bytes.len())?;
            }
            machine.ram.write(placement.addr, bytes)?;
        }
        if let Some(operation) = end.qp.poll_atomic() {
            let original = machine.word(operation.addr)?;
            let after = self.oracle.executed(index, &operation)?;
            ensure!(
                operation.kind.apply(original) == after,
                "{:?} finds {original:#x}, expected another",
                operation.kind
            );
            machine.ram.write(operation.addr, &after.to_ne_bytes())?;
            end.qp.complete_atomic(original);
        }
        self.srq.check()?;
        self.drain(index)
    }

    /// Takes all outputs of a queue pair.
    pub(super) fn drain(&mut self, index: EndIndex) -> Result<(), Violation> {
        self.drain_results(index)?;
        loop {
            let end = &mut self.ends[index];
            let Some((bytes, is_for_group)) =
                end.next_packet(self.now, &self.machines[end.host])?
            else {
                return self.drain_results(index);
            };
            let host = end.host;
            let receivers: Vec<EndIndex> = match end.peer {
                Some(peer) => vec![peer],
                None if is_for_group => self.members_but(index),
                None => return Err(violation!("end {index} sends without a destination")),
            };
            for receiver in receivers {
                self.send(host, index, receiver, bytes.clone())?;
            }
            self.drain_results(index)?;
        }
    }

    fn members_but(&self, sender: EndIndex) -> Vec<EndIndex> {
        let ends = self.oracle.ends.iter().enumerate();
        let members = ends.filter(|(index, seen)| seen.qp_type == QpType::Ud && *index != sender);
        members.map(|(index, _)| index).collect()
    }

    fn send(
        &mut self,
        host: usize,
        from: EndIndex,
        to: EndIndex,
        bytes: Vec<u8>,
    ) -> Result<(), Violation> {
        let to_host = self.ends[to].host;
        let to_addr = self.machines[to_host].addr;
        let machine = &mut self.machines[host];
        let (addr, ip_id) = (machine.addr, machine.next_ip_id());
        let datagram = Datagram::seal(addr, to_addr, from as u32, ip_id, bytes)?;
        let traced = self.trace.is_on().then(|| datagram.payload.clone());
        let fate = self.network.send(self.now, host, to_host, datagram);
        if let Some(bytes) = traced {
            let (from, to) = (TRACED_FROM + host, TRACED_FROM + to_host);
            self.trace.packet(from, to, &bytes, fate.note);
        }
        for (at, datagram) in fate.arrivals.into_iter().flatten() {
            self.plan_task(at - self.now, Task::Arrive(to, datagram));
        }
        Ok(())
    }

    /// Takes completions and asynchronous events.
    fn drain_results(&mut self, index: EndIndex) -> Result<(), Violation> {
        loop {
            let end = &mut self.ends[index];
            if let Some(completion) = end.qp.poll_completion() {
                self.completed(index, &completion)?;
            } else if let Some(event) = end.qp.poll_async_event() {
                let is_last = matches!(event, AsyncEvent::QpLastWqeReached(_));
                let is_first = matches!(event, AsyncEvent::CommEst(_));
                ensure!(
                    is_last && end.qp.state() == QpState::Err || is_first,
                    "end {index} raises {event:?}"
                );
            } else {
                return Ok(());
            }
        }
    }

    fn completed(&mut self, index: EndIndex, completion: &Completion) -> Result<(), Violation> {
        let end = &self.ends[index];
        let (wc, state, host) = (&completion.wc, end.qp.state(), end.host);
        let machine = &self.machines[host];
        self.trace.note(TRACED_FROM + host, || {
            format!("end {index}: {:?} {wc:?}", completion.queue)
        });
        if completion.queue == Queue::Send {
            let read = |addr| machine.word(addr);
            return self.oracle.send_completed(index, wc, state, read);
        }
        let Some(received) = self.oracle.receive_completed(host, index, wc, state)? else {
            return Ok(());
        };
        let start = received.addr + u64::from(received.header);
        let found = machine.ram.read(start, received.len as usize)?;
        ensure!(
            found == received.noise.bytes(received.len as usize),
            "receive {} of end {index} does not hold what was sent",
            wc.wr_id
        );
        Ok(())
    }
}

/// The header in front of a datagram's data.
fn network_header(datagram: &Datagram) -> [u8; GRH_LEN] {
    let mut header = [0; GRH_LEN];
    header[8..24].copy_from_slice(&ip_to_gid(datagram.source.ip()).0);
    header[24..].copy_from_slice(&ip_to_gid(datagram.destination.ip()).0);
    header
}
