//! A queue pair with its completion queues, as the I/O of the real device drives it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use portolan_provider::verbs::{
    Mtu, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, WorkCompletion,
};
use portolan_roce::engine::{
    Compact, CompletionQueue, FlowConfig, MemoryTable, Payload, PdId, QpConfig, QpLimits, Queue,
    QueuePair, Segment,
};
use portolan_wire::Qpn;
use portolan_wire::rocev2::{Headers, ICRC_LEN, MAX_HEADERS_LEN, Packet};

use super::failure::{Violation, ensure, violation};
use super::oracle::EndpointIndex;
use super::packet::assemble;
use super::plan::WorkloadPlan;
use super::ram::Ram;

/// The one protection domain.
pub(super) const PD: PdId = PdId(1);

/// Pieces of memory per request.
const SGES_MAX: u32 = 4;

/// Inline bytes per request.
pub(super) const INLINE_BYTES_MAX: u32 = 128;

/// Completions taken at once.
const POLL_BATCH: usize = 4;

/// Largest UDP payload.
pub(super) const PACKET_BYTES_MAX: usize = MAX_HEADERS_LEN + 4096 + ICRC_LEN;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) qp: QueuePair,
    pub(super) endpoint: EndpointIndex,
    pub(super) agent: u64,
    /// Address of the peer.
    pub(super) peer: Option<IpAddr>,
    pub(super) mtu: Mtu,
    /// The transition to RTS, from when it is known until it is done.
    pub(super) to_send: Option<(QpAttr, QpAttrMask)>,
    pub(super) rnr_retry_count: u8,
    /// One queue for both directions, or one for each.
    cqs: Vec<PolledQueue>,
    /// Whether a task to continue sending, or to poll, is scheduled.
    pub(super) will_send: bool,
    pub(super) will_poll: bool,
}

/// A completion queue and the completions expected from it.
#[derive(Debug)]
struct PolledQueue {
    queue: CompletionQueue,
    pushed: VecDeque<u64>,
}

impl Slot {
    pub(super) fn new(
        qpn: Qpn,
        endpoint: EndpointIndex,
        agent: u64,
        flow: FlowConfig,
        plan: &WorkloadPlan,
    ) -> Result<Self, Violation> {
        let receive_depth = plan.receives.max(1) as u32;
        let cap = QpCap {
            max_send_wr: plan.send_depth,
            max_recv_wr: receive_depth,
            max_send_sge: SGES_MAX,
            max_recv_sge: SGES_MAX,
            max_inline_data: INLINE_BYTES_MAX,
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            cap,
            sq_sig_all: plan.signals_all,
        };
        let config = QpConfig {
            qpn,
            pd: PD,
            init,
            limits: QpLimits::default(),
            flow,
        };
        let qp = QueuePair::new(config).map_err(|error| violation!("no queue pair: {error}"))?;
        let sends = plan.ops.len().max(1) as u32;
        let capacities = match plan.shares_cq {
            true => vec![sends + receive_depth],
            false => vec![sends, receive_depth],
        };
        let cqs = capacities
            .into_iter()
            .map(PolledQueue::new)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            qp,
            endpoint,
            agent,
            peer: None,
            mtu: Mtu::Mtu256,
            to_send: None,
            rnr_retry_count: 0,
            cqs,
            will_send: false,
            will_poll: false,
        })
    }

    pub(super) fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Violation> {
        let (from, to) = (self.qp.state(), attr.state);
        self.qp
            .modify(attr, mask)
            .map_err(|error| violation!("queue pair not moved from {from} to {to}: {error}"))
    }

    /// Moves to ERR from any state.
    pub(super) fn fail(&mut self) -> Result<(), Violation> {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        self.modify(&attr, QpAttrMask::STATE)
    }

    /// The next packet to send, without its ICRC.
    pub(super) fn next_packet(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        ram: &Ram,
    ) -> Result<Option<Vec<u8>>, Violation> {
        if self.shares_memory() {
            if let Some(send) = self.qp.poll_send_only(now, memory) {
                return build(&send.headers(), &send.payload, ram).map(Some);
            }
            if let Some((bth, aeth)) = self.qp.poll_acknowledgement() {
                let headers = Headers {
                    aeth: Some(aeth),
                    ..bth.into()
                };
                return assemble(&headers, &[]).map(Some);
            }
        }
        let Some(transmit) = self.qp.poll_transmit(now, memory, PACKET_BYTES_MAX) else {
            return Ok(None);
        };
        let announced = transmit.udp_payload_len();
        let bytes = build(&transmit.headers, &transmit.payload, ram)?;
        ensure!(
            bytes.len() == announced,
            "a packet of {} bytes, not {announced}",
            bytes.len()
        );
        Ok(Some(bytes))
    }

    /// Whether the host uses short forms of packets for this queue pair, as between processes that share memory.
    fn shares_memory(&self) -> bool {
        self.qp.qpn().value() % 2 == 1
    }

    /// Takes a packet in its short form, if it has one and the queue pair takes it. Returns the memory for its
    /// payload.
    pub(super) fn take_compact(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        packet: &Packet<'_>,
    ) -> Option<Segment> {
        let compact = Compact::of_packet(&packet.headers(), packet.payload().len())
            .filter(|_| self.shares_memory())?;
        let compact = Compact::parse(&compact.emit())?;
        if let Some(ack) = &compact.acknowledgement {
            let nothing = Segment { addr: 0, len: 0 };
            let taken = self.qp.take_acknowledgement(now, memory, ack);
            return taken.then_some(nothing);
        }
        self.qp.take_send(memory, &compact.send?)
    }

    /// Adds a completion to its queue. Returns whether to wake the program.
    pub(super) fn complete(
        &mut self,
        queue: Queue,
        wc: WorkCompletion,
        is_solicited: bool,
    ) -> Result<bool, Violation> {
        let last = self.cqs.len() - 1;
        let at = if queue == Queue::Send { 0 } else { last };
        let cq = self
            .cqs
            .get_mut(at)
            .ok_or_else(|| violation!("no completion queue"))?;
        cq.queue
            .push(wc, is_solicited)
            .map_err(|overflow| violation!("queue pair {}: {overflow}", wc.qp_num))?;
        cq.pushed.push_back(wc.wr_id);
        Ok(cq.queue.take_notification())
    }

    /// Arms the queues, then drains them, as programs do to miss nothing. Returns whether a queue
    /// reported completions between the two.
    pub(super) fn poll(&mut self) -> Result<bool, Violation> {
        let mut again = false;
        for cq in &mut self.cqs {
            cq.queue.arm(false);
            again |= cq.queue.take_notification();
            cq.drain()?;
        }
        Ok(again)
    }

    /// Completions that were added and not polled.
    pub(super) fn unpolled(&self) -> usize {
        self.cqs.iter().map(|cq| cq.pushed.len()).sum()
    }
}

/// Builds a packet without its ICRC.
fn build(headers: &Headers, payload: &Payload<'_>, ram: &Ram) -> Result<Vec<u8>, Violation> {
    match payload {
        Payload::Inline(bytes) => assemble(headers, &[bytes]),
        Payload::Segments(segments) => {
            let parts = segments
                .iter()
                .map(|part| ram.read(part.addr, part.len as usize));
            assemble(headers, &parts.collect::<Result<Vec<_>, _>>()?)
        }
    }
}

impl PolledQueue {
    fn new(capacity: u32) -> Result<Self, Violation> {
        let mut queue = CompletionQueue::new(capacity, capacity)
            .map_err(|error| violation!("no completion queue: {error}"))?;
        queue.arm(false);
        Ok(Self {
            queue,
            pushed: VecDeque::new(),
        })
    }

    /// Takes all completions and checks that they keep their order.
    fn drain(&mut self) -> Result<(), Violation> {
        let mut batch = [WorkCompletion::EMPTY; POLL_BATCH];
        loop {
            let count = self.queue.poll(&mut batch);
            for wc in &batch[..count] {
                let expected = self.pushed.pop_front();
                ensure!(
                    expected == Some(wc.wr_id),
                    "completion {} came out of its queue, expected {expected:?}",
                    wc.wr_id
                );
            }
            if count < POLL_BATCH {
                break;
            }
        }
        ensure!(
            self.pushed.is_empty(),
            "{} completions stuck in their queue",
            self.pushed.len()
        );
        Ok(())
    }
}
