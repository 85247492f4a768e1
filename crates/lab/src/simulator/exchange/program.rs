//! The programs of an exchange: they post receives and requests as planned.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_provider::verbs::{
    QpType, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge,
};
use portolan_roce::engine::{AtomicKind, Destination, Path};
use portolan_wire::Qpn;

use super::machine::{
    End, Machine, OUTGOING_KEY, QKEY, RESULTS_KEY, WORD_BYTES, WORDS_KEY, draw_qpns, group,
};
use super::oracle::{EndIndex, Posted, Receive, Seen, What};
use super::plan::{ClientPlan, OpKind};
use super::{Exchange, SERVER, TRACED_FROM, Task};
use crate::simulator::failure::{Violation, violation};

impl Exchange {
    /// Sets up machines and connected queue pairs, and schedules the first tasks.
    pub(super) fn set_up(&mut self) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let receives = plan.receives * self.place_len as usize;
        for host in 0..=plan.clients.len() {
            let client = host
                .checked_sub(1)
                .and_then(|index| plan.clients.get(index));
            let ops = client.map_or(0, |client| client.ops.len());
            let bytes = client.map_or(0, ClientPlan::bytes);
            let is_member = client.is_none_or(|client| client.qp_type == QpType::Ud);
            let incoming = if is_member { receives } else { 0 };
            let sizes = [bytes, incoming, ops * WORD_BYTES];
            self.machines
                .push(Machine::new(host, sizes, &mut self.rng)?);
        }
        self.oracle.words_addr = self.machines[SERVER].words_addr;
        let qpns = draw_qpns(2 * plan.clients.len(), &mut self.rng);
        for (index, (client, qpns)) in plan.clients.iter().zip(qpns.chunks_exact(2)).enumerate() {
            let (own, served) = (self.ends.len(), self.ends.len() + 1);
            let is_connected = client.qp_type != QpType::Ud;
            let peer = |end| is_connected.then_some(end);
            let near = End::new(index + 1, qpns[0], peer(served), &plan, client, None)?;
            let far = End::new(SERVER, qpns[1], peer(own), &plan, client, Some(&self.srq))?;
            let psns = client.psns;
            for (mut end, dest, psns) in [
                (near, qpns[1], [psns[1], psns[0]]),
                (far, qpns[0], [psns[0], psns[1]]),
            ] {
                end.make_ready(dest, psns, &plan, client)?;
                let seen = Seen::new(client.qp_type, end.qp.qpn(), end.peer);
                self.oracle.ends.push(seen);
                self.ends.push(end);
            }
            self.clients.extend([Some(index), None]);
            if !is_connected {
                for wr_id in 0..plan.receives as u64 {
                    self.post_own_receive(own, wr_id)?;
                }
            }
            let pause = client.ops.first().map_or(Duration::ZERO, |op| op.pause);
            self.plan_task(pause, Task::Post(own));
            if let Some((failing, after)) = plan.failure
                && failing == index
            {
                self.plan_task(after, Task::Fail(served));
            }
        }
        for _ in 0..plan.receives_early {
            self.post_receive()?;
        }
        self.plan_task(plan.receive_pause, Task::PostReceive);
        Ok(())
    }

    /// Posts a receive to the shared queue.
    pub(super) fn post_receive(&mut self) -> Result<(), Violation> {
        let wr_id = self.posted_receives;
        self.posted_receives += 1;
        let sge = self.machines[SERVER].place(wr_id, self.place_len);
        self.oracle
            .receives
            .insert((SERVER, wr_id), Receive::new(sge.addr, sge.length));
        self.srq.post(wr_id, sge)
    }

    /// Posts a receive to a member's own queue.
    fn post_own_receive(&mut self, end: EndIndex, wr_id: u64) -> Result<(), Violation> {
        let host = self.ends[end].host;
        let sge = self.machines[host].place(wr_id, self.place_len);
        self.oracle
            .receives
            .insert((host, wr_id), Receive::new(sge.addr, sge.length));
        let sges = &[sge];
        let posted = self.ends[end].qp.post_recv(&RecvWr { wr_id, sges });
        posted.map_err(|error| violation!("end {end}, receive {wr_id}: {error}"))
    }

    /// Posts the next requests of a client, until a pause.
    pub(super) fn post_next(&mut self, end: EndIndex) -> Result<(), Violation> {
        let Some(client) = self.clients[end] else {
            return Ok(());
        };
        loop {
            let at = self.ends[end].next_op;
            let Some(op) = self.plan.clients[client].ops.get(at).copied() else {
                return Ok(());
            };
            self.post(end, at, op.kind)?;
            self.ends[end].next_op += 1;
            self.drain(end)?;
            let next = self.plan.clients[client].ops.get(at + 1);
            let pause = next.map_or(Duration::ZERO, |op| op.pause);
            if pause > Duration::ZERO {
                self.plan_task(pause, Task::Post(end));
                return Ok(());
            }
        }
    }

    fn post(&mut self, index: EndIndex, at: usize, kind: OpKind) -> Result<(), Violation> {
        let end = &mut self.ends[index];
        let machine = &self.machines[end.host];
        let words_addr = self.oracle.words_addr;
        let result_addr = machine.results_addr + (at * WORD_BYTES) as u64;
        let remote = |word: usize| RemoteAddr {
            addr: words_addr + (word * WORD_BYTES) as u64,
            rkey: WORDS_KEY,
        };
        let result = Sge {
            addr: result_addr,
            length: WORD_BYTES as u32,
            lkey: RESULTS_KEY,
        };
        // Unique, so that its execution can be matched with this request.
        let unique = self.rng.next_u64();
        let (op, sge, what) = match kind {
            OpKind::Message { len } => {
                let (base, noise) = machine.outgoing;
                let offset = end.posted_bytes;
                end.posted_bytes += len;
                let sge = Sge {
                    addr: base + u64::from(offset),
                    length: len,
                    lkey: OUTGOING_KEY,
                };
                let what = What::Message {
                    noise: noise.after(offset as usize),
                    len,
                    received: BTreeMap::new(),
                };
                (SendOp::SendWithImm((at as u32).to_be()), sge, what)
            }
            OpKind::FetchAdd { word } => {
                let (remote, add) = (remote(word), unique);
                let kind = AtomicKind::FetchAdd { add };
                let op = SendOp::AtomicFetchAdd { remote, add };
                (op, result, What::atomic(kind, word, result_addr))
            }
            OpKind::CompareSwap { word, is_current } => {
                let (remote, swap) = (remote(word), unique);
                let compare = match is_current {
                    true => self.oracle.words[word],
                    false => self.rng.next_u64(),
                };
                let kind = AtomicKind::CompareSwap { compare, swap };
                let op = SendOp::AtomicCmpSwap {
                    remote,
                    compare,
                    swap,
                };
                (op, result, What::atomic(kind, word, result_addr))
            }
        };
        let sges = [sge];
        let data = SendData::Sges(if sge.length == 0 { &[] } else { &sges });
        let wr = SendWr {
            wr_id: at as u64,
            op,
            data,
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        let posted = match end.peer {
            Some(_) => end.qp.post_send(&wr),
            None => end.qp.post_datagram(&wr, to_group(machine)),
        };
        posted.map_err(|error| violation!("end {index}, request {at}: {error}"))?;
        self.trace.note(TRACED_FROM + end.host, || {
            format!("end {index} posts {at}: {op:?}")
        });
        self.oracle.ends[index]
            .posted
            .push(Posted { what, status: None });
        Ok(())
    }
}

impl ClientPlan {
    /// Total bytes of its messages.
    fn bytes(&self) -> usize {
        let lens = self.ops.iter().map(|op| match op.kind {
            OpKind::Message { len } => len as usize,
            OpKind::FetchAdd { .. } | OpKind::CompareSwap { .. } => 0,
        });
        lens.sum()
    }
}

impl What {
    fn atomic(kind: AtomicKind, word: usize, result_addr: u64) -> Self {
        Self::Atomic {
            kind,
            word,
            result_addr,
            original: None,
        }
    }
}

/// The destination of a machine's datagrams to the group.
fn to_group(machine: &Machine) -> Destination {
    Destination {
        path: Path {
            local: machine.addr,
            remote: group(),
            interface: 1,
            traffic_class: 0,
            hop_limit: 64,
        },
        qpn: Qpn::MULTICAST,
        qkey: QKEY,
    }
}
