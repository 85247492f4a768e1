//! Endpoints: queue pairs with their memory, on their way to RTS.

use portolan_cm::time_of_exponent;
use portolan_provider::verbs::{Access, QpAttrMask, QpState};
use portolan_wire::Qpn;

use crate::simulator::AgentKey;
use crate::simulator::device::Slot;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::oracle::{Arenas, EndpointIndex};
use crate::simulator::plan::{Kind, Side, WorkloadPlan};
use crate::simulator::world::World;

/// Spare room in each region.
const ARENA_SLACK: u32 = 4096;

impl World {
    /// Creates a queue pair in INIT, with memory for the whole plan.
    pub(super) fn create_endpoint(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        side: Side,
    ) -> Result<EndpointIndex, Violation> {
        let plan = self.plan.clone();
        let workloads = &plan.conversations[number].workloads;
        let (own, peers) = (&workloads[side as usize], &workloads[1 - side as usize]);
        let machine = &mut self.hosts[host];
        let sizes = arena_sizes(own, peers);
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let arenas = Arenas {
            outgoing: machine.register(sizes[0], true, Access::empty())?,
            incoming: machine.register(sizes[1], false, Access::LOCAL_WRITE)?,
            target: machine.register(sizes[2], false, written)?,
            source: machine.register(sizes[3], true, Access::REMOTE_READ)?,
        };
        let qpn = machine.draw_qpn();
        let endpoint = self.oracle.add(number, side, host, Qpn::new(qpn), arenas);
        let mut slot = Slot::new(Qpn::new(qpn), endpoint, key, plan.flow, own)?;
        slot.rnr_retry_count = plan.conversations[number].rnr_retry_count;
        let machine = &mut self.hosts[host];
        let agent = machine.agent_mut(key)?;
        agent.endpoint = Some(endpoint);
        let id = agent.id;
        let init = machine.cm.init_qp_attr(id, QpState::Init);
        let (attr, mask) = init.map_err(|error| violation!("{error}"))?;
        slot.modify(&attr, mask)?;
        machine.slots.insert(qpn, slot);
        self.conversations[number].endpoints[side as usize] = Some(endpoint);
        self.trace.note(host, || {
            format!("endpoint {endpoint} is {side:?}, queue pair {qpn:#x}")
        });
        Ok(endpoint)
    }

    /// Sets INIT again with the access rights from the handshake, then RTR. Returns the negotiated
    /// read depths, as responder and as initiator.
    pub(super) fn ready(
        &mut self,
        host: usize,
        key: AgentKey,
        depth: u8,
    ) -> Result<(u8, u8), Violation> {
        let index = self.endpoint_of(host, key)?;
        let machine = &mut self.hosts[host];
        let id = machine.agent(key)?.id;
        let attributes = |state| {
            machine
                .cm
                .init_qp_attr(id, state)
                .map_err(|error| violation!("to {state}: {error}"))
        };
        let (init, init_mask) = attributes(QpState::Init)?;
        let (mut rtr, rtr_mask) = attributes(QpState::Rtr)?;
        let (mut rts, rts_mask) = attributes(QpState::Rts)?;
        rtr.max_dest_rd_atomic = rtr.max_dest_rd_atomic.min(depth);
        rts.max_rd_atomic = rts.max_rd_atomic.min(depth);
        let longest = self.plan.cm.longest_grant_exp;
        let timewait = time_of_exponent(rts.timeout.min(longest));
        let endpoint = &mut self.oracle.endpoints[index];
        endpoint.ids_psns = Some((rtr.rq_psn, rts.sq_psn));
        let (number, side) = (endpoint.conversation, endpoint.side);
        let accepts = self.oracle.accepts_before(index);
        let endpoint = &mut self.oracle.endpoints[index];
        if let Some(mut psns) = self.plan.conversations[number].psns {
            // Queue pairs that accept the same request must start at different PSNs.
            let answers = &mut psns[Side::Active as usize];
            *answers = answers.add(accepts << 20);
            rtr.rq_psn = psns[side as usize];
            rts.sq_psn = psns[1 - side as usize];
        }
        (endpoint.rq_psn, endpoint.sq_psn) = (Some(rtr.rq_psn), Some(rts.sq_psn));
        endpoint.silence.configure(&rts, rtr.min_rnr_timer);
        let (qpn, peer) = (endpoint.qpn.value(), endpoint.peer);
        self.check_psns(index)?;
        let peer = peer.and_then(|peer| self.oracle.endpoints.get(peer));
        let peer_host = peer
            .ok_or_else(|| violation!("endpoint {index} has no peer"))?
            .host;
        let peer_addr = self.hosts[peer_host].addr;
        let machine = &mut self.hosts[host];
        machine.agent_mut(key)?.life.timewait = timewait;
        let slot = machine.slots.get_mut(&qpn);
        let slot = slot.ok_or_else(|| violation!("endpoint {index} has no queue pair"))?;
        slot.peer = Some(peer_addr);
        slot.mtu = rtr.path_mtu;
        slot.to_send = Some((rts, rts_mask));
        if slot.qp.state() == QpState::Init {
            slot.modify(&init, init_mask)?;
            slot.modify(&rtr, rtr_mask)?;
        }
        Ok((rtr.max_dest_rd_atomic, rts.max_rd_atomic))
    }

    /// Moves to RTS, unless the queue pair is past it.
    pub(super) fn ready_to_send(&mut self, host: usize, key: AgentKey) -> Result<(), Violation> {
        let index = self.endpoint_of(host, key)?;
        let qpn = self.oracle.endpoints[index].qpn.value();
        let slot = self.hosts[host].slots.get_mut(&qpn);
        let slot = slot.ok_or_else(|| violation!("endpoint {index} has no queue pair"))?;
        let (attr, mask): (_, QpAttrMask) = match slot.to_send.take() {
            Some(to_send) if slot.qp.state() == QpState::Rtr => to_send,
            _ => return Ok(()),
        };
        slot.modify(&attr, mask)?;
        self.drain_qp(host, qpn)
    }

    /// Checks that both sides of a handshake agree on their first PSNs.
    fn check_psns(&self, index: EndpointIndex) -> Result<(), Violation> {
        let own = self.oracle.endpoints[index].ids_psns;
        // Another endpoint may have answered this request before, and been refused.
        let peer = self
            .oracle
            .peer(index)
            .filter(|peer| peer.peer == Some(index));
        let peers = peer.and_then(|peer| peer.ids_psns);
        let (Some(own), Some(peers)) = (own, peers) else {
            return Ok(());
        };
        ensure!(
            own == (peers.1, peers.0),
            "endpoint {index} begins with PSNs {own:?}, its peer with {peers:?}"
        );
        Ok(())
    }

    pub(super) fn endpoint_of(
        &self,
        host: usize,
        key: AgentKey,
    ) -> Result<EndpointIndex, Violation> {
        let endpoint = self.hosts[host].agent(key)?.endpoint;
        endpoint.ok_or_else(|| violation!("agent {key} has no endpoint"))
    }
}

/// Sizes of the regions, in bytes: to send, to receive or read into, for the peer to write, for the
/// peer to read.
fn arena_sizes(own: &WorkloadPlan, peers: &WorkloadPlan) -> [usize; 4] {
    let sum = |workload: &WorkloadPlan, kinds: &[Kind]| -> u32 {
        let ops = workload.ops.iter().filter(|op| kinds.contains(&op.kind));
        ops.map(|op| op.len).sum()
    };
    let reads = peers.ops.iter().filter(|op| op.kind == Kind::Read);
    let longest_read = reads.map(|op| op.len).max().unwrap_or(0);
    let received = own.receive_len * own.receives as u32;
    let sizes = [
        sum(own, &[Kind::Send, Kind::Write]),
        sum(own, &[Kind::Read]) + received,
        sum(peers, &[Kind::Write]),
        longest_read,
    ];
    sizes.map(|size| (size + ARENA_SLACK) as usize)
}
