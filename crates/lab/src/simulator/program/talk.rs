//! The conversation: requests and receives posted over time.

use std::time::Duration;

use portolan_provider::error::Cause;
use portolan_provider::verbs::{QpState, RecvWr, SendData, SendWr};

use super::request::{Pieces, Prepared};
use crate::simulator::AgentKey;
use crate::simulator::agenda::HostTask;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::Role;
use crate::simulator::oracle::{Phase, Receive};
use crate::simulator::plan::{Class, Ending, Side};
use crate::simulator::world::World;

/// Pause before a full queue is tried again.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(3);

/// Round trips below this vary too little to look like a loss, which is detected after at least 10
/// ms.
const STEADY_LATENCY_US_MAX: u64 = 5000;

impl World {
    /// The connection is established on this side.
    pub(super) fn start_talking(&mut self, host: usize, key: AgentKey) -> Result<(), Violation> {
        let index = self.endpoint_of(host, key)?;
        let endpoint = &self.oracle.endpoints[index];
        let (qpn, number, side) = (endpoint.qpn, endpoint.conversation, endpoint.side);
        let slot = self.hosts[host].slots.get(&qpn.value());
        if slot.is_none_or(|slot| slot.qp.state() != QpState::Rts) {
            // The connection ended before it began.
            return Ok(());
        }
        let agent = self.hosts[host].agent_mut(key)?;
        if std::mem::replace(&mut agent.is_talking, true) {
            return Ok(());
        }
        let plan = self.plan.clone();
        let workload = &plan.conversations[number].workloads[side as usize];
        if workload.receives_early < workload.receives {
            self.plan_on(host, workload.receive_pause, HostTask::PostReceives(key));
        }
        self.post_sends(host, key)?;
        self.progress(host, qpn.value())
    }

    /// Posts the next requests, until a pause, the end or a full queue.
    pub(in crate::simulator) fn post_sends(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let plan = self.plan.clone();
        loop {
            let Some(agent) = self.hosts[host].agents.get(&key) else {
                return Ok(());
            };
            let (at, index) = (agent.next_op, self.endpoint_of(host, key)?);
            let endpoint = &self.oracle.endpoints[index];
            let (number, side) = (endpoint.conversation, endpoint.side);
            let workload = &plan.conversations[number].workloads[side as usize];
            if at == workload.ops.len() {
                return Ok(());
            }
            if !self.post_send(host, key, at)? {
                self.plan_on(host, FULL_QUEUE_PAUSE, HostTask::PostSends(key));
                return Ok(());
            }
            match workload.ops.get(at + 1) {
                Some(next) if next.pause > Duration::ZERO => {
                    self.plan_on(host, next.pause, HostTask::PostSends(key));
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Posts one request. Returns false if the queue is full, which requires that requests are in
    /// it.
    fn post_send(&mut self, host: usize, key: AgentKey, at: usize) -> Result<bool, Violation> {
        let index = self.endpoint_of(host, key)?;
        let peer = self.oracle.endpoints[index].peer;
        let peer = peer.ok_or_else(|| violation!("endpoint {index} has no peer"))?;
        let before = [index, peer].map(|index| self.oracle.endpoints[index].arenas);
        let Prepared {
            op,
            sges,
            flags,
            posted,
        } = self.prepare(index, at)?;
        let content = posted.content.to_vec();
        let data = match posted.plan.is_inline {
            true => SendData::Inline(&content),
            false => SendData::Sges(&sges),
        };
        let wr = SendWr {
            wr_id: posted.wr_id,
            op,
            data,
            flags,
            ud: None,
            srq: None,
        };
        let qpn = self.oracle.endpoints[index].qpn.value();
        let Some(slot) = self.hosts[host].slots.get_mut(&qpn) else {
            return Ok(true);
        };
        match slot.qp.post_send(&wr) {
            Ok(()) => {
                self.trace.note(host, || {
                    let wr_id = posted.wr_id;
                    format!(
                        "endpoint {index}: posts {wr_id}, {op:?}, {} bytes",
                        posted.plan.len
                    )
                });
                self.oracle.endpoints[index].sends.push(posted);
                self.hosts[host].agent_mut(key)?.next_op += 1;
                self.drain_qp(host, qpn)?;
                Ok(true)
            }
            Err(error) => {
                let depth = slot.qp.query().1.cap.max_send_wr as usize;
                let is_full = matches!(error.cause, Cause::LimitReached { .. });
                let endpoint = &mut self.oracle.endpoints[index];
                let waiting = endpoint.sends.len() - endpoint.sends_done;
                ensure!(
                    is_full && waiting >= depth,
                    "endpoint {index}: {waiting} wait, {error}"
                );
                endpoint.arenas = before[0];
                self.oracle.endpoints[peer].arenas = before[1];
                Ok(false)
            }
        }
    }

    /// Posts the receives that must be there before the connection.
    pub(super) fn post_early_receives(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let index = self.endpoint_of(host, key)?;
        let endpoint = &self.oracle.endpoints[index];
        let (number, side) = (endpoint.conversation, endpoint.side);
        let early = self.plan.conversations[number].workloads[side as usize].receives_early;
        (0..early).try_for_each(|_| self.post_receive(host, key))
    }

    /// Posts one more receive and schedules the next.
    pub(in crate::simulator) fn post_receives(
        &mut self,
        host: usize,
        key: AgentKey,
    ) -> Result<(), Violation> {
        let Some(agent) = self.hosts[host].agents.get(&key) else {
            return Ok(());
        };
        let next = agent.next_receive + 1;
        let Role::Talker { conversation, side } = agent.role else {
            return Ok(());
        };
        self.post_receive(host, key)?;
        let workload = &self.plan.conversations[conversation].workloads[side as usize];
        let (pause, more) = (workload.receive_pause, next < workload.receives);
        if more {
            self.plan_on(host, pause, HostTask::PostReceives(key));
        }
        Ok(())
    }

    fn post_receive(&mut self, host: usize, key: AgentKey) -> Result<(), Violation> {
        let wr_id = self.next_wr_id();
        let index = self.endpoint_of(host, key)?;
        let endpoint = &mut self.oracle.endpoints[index];
        let workload = &self.plan.conversations[endpoint.conversation].workloads;
        let workload = &workload[endpoint.side as usize];
        let (len, pieces) = (workload.receive_len, workload.receive_pieces);
        let Pieces { sges, target, .. } =
            endpoint
                .arenas
                .incoming
                .take_pieces(len, pieces, &mut self.rng)?;
        let qpn = endpoint.qpn.value();
        let Some(slot) = self.hosts[host].slots.get_mut(&qpn) else {
            return Ok(());
        };
        let posting = slot.qp.post_recv(&RecvWr { wr_id, sges: &sges });
        posting.map_err(|error| violation!("endpoint {index}: {error}"))?;
        endpoint.receives.push(Receive {
            wr_id,
            target,
            status: None,
        });
        self.hosts[host].agent_mut(key)?.next_receive += 1;
        self.drain_qp(host, qpn)
    }

    /// After activity at a queue pair: checks whether it failed or all data are sent.
    pub(in crate::simulator) fn progress(
        &mut self,
        host: usize,
        qpn: u32,
    ) -> Result<(), Violation> {
        let machine = &mut self.hosts[host];
        let Some(slot) = machine.slots.get(&qpn) else {
            return Ok(());
        };
        let (key, is_broken) = (slot.agent, slot.qp.state() == QpState::Err);
        let agent = machine.agent_mut(key)?;
        let Role::Talker { conversation, .. } = agent.role else {
            return Ok(());
        };
        if is_broken
            && agent.life.phase == Phase::Connected
            && !std::mem::replace(&mut agent.will_disconnect, true)
        {
            let after = machine.reaction();
            self.plan_on(host, after, HostTask::Disconnect(key));
        }
        self.complete_conversation(conversation)
    }

    /// Once both sides have sent and received everything, ends the conversation as planned.
    fn complete_conversation(&mut self, number: usize) -> Result<(), Violation> {
        let conversation = &self.conversations[number];
        let ([Some(active), Some(passive)], false) =
            (conversation.agents, conversation.is_complete)
        else {
            return Ok(());
        };
        let sides = [(active, Side::Active), (passive, Side::Passive)];
        if !sides
            .into_iter()
            .all(|(agent, side)| self.has_said_all(number, agent, side))
        {
            return Ok(());
        }
        for ((host, _), side) in sides {
            self.check_no_needless_retransmission(number, host, side)?;
        }
        self.tally.count("conversation completed");
        self.trace
            .note(active.0, || format!("conversation {number} is complete"));
        self.conversations[number].is_complete = true;
        let plan = self.plan.clone();
        let plan = &plan.conversations[number];
        if let Ending::WhenDone {
            active: active_ends,
            passive: passive_ends,
        } = plan.ending
        {
            for ((host, key), side) in sides {
                let ends = if side == Side::Active {
                    active_ends
                } else {
                    passive_ends
                };
                if ends {
                    let delay = plan.disconnect_delay[side as usize];
                    self.plan_on(host, delay, HostTask::Disconnect(key));
                }
            }
        }
        Ok(())
    }

    /// If nothing is lost and no RNR NAK was sent, nothing may be retransmitted.
    fn check_no_needless_retransmission(
        &self,
        number: usize,
        host: usize,
        side: Side,
    ) -> Result<(), Violation> {
        let index = self.conversations[number].endpoints[side as usize];
        let qpn = index.map(|index| self.oracle.endpoints[index].qpn.value());
        let slot = qpn.and_then(|qpn| self.hosts[host].slots.get(&qpn));
        let is_calm =
            self.plan.class == Class::Calm && self.plan.faults.latency_us.1 < STEADY_LATENCY_US_MAX;
        let Some(slot) = slot.filter(|_| is_calm) else {
            return Ok(());
        };
        let counters = slot.qp.counters();
        ensure!(
            counters.rnr_naks_received > 0 || (counters.retransmits, counters.timeouts) == (0, 0),
            "endpoint {index:?} sent again without need: {counters:?}"
        );
        Ok(())
    }

    fn has_said_all(&self, number: usize, (host, key): (usize, AgentKey), side: Side) -> bool {
        let machine = &self.hosts[host];
        let Some(agent) = machine.agents.get(&key).filter(|agent| agent.is_talking) else {
            return false;
        };
        let Some(index) = agent.endpoint else {
            return false;
        };
        let workloads = &self.plan.conversations[number].workloads;
        let ops = workloads[side as usize].ops.len();
        let peers = workloads[1 - side as usize].ops.iter();
        let messages = peers.filter(|op| op.takes_receive()).count();
        let slot = machine.slots.get(&self.oracle.endpoints[index].qpn.value());
        self.oracle.is_all_done(index, ops, messages)
            && slot.is_some_and(|slot| slot.unpolled() == 0 && slot.qp.state() == QpState::Rts)
    }
}
