//! The machines of an exchange: memory, queue pairs, and the server's shared receive queue.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_provider::verbs::{
    Access, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, Sge, SrqAttr, Srqn,
};
use portolan_roce::engine::{
    MemoryTable, Payload, PdId, QpConfig, QpLimits, QueuePair, ReceiveEntry, ReceiveSource, Region,
    SharedReceiveQueue,
};
use portolan_wire::{QKey, Qpn};

use super::oracle::EndIndex;
use super::plan::{ClientPlan, Plan, WORDS};
use crate::simulator::content::Noise;
use crate::simulator::device::PACKET_BYTES_MAX;
use crate::simulator::device::PD;
use crate::simulator::failure::{Violation, violation};
use crate::simulator::packet::assemble;
use crate::simulator::ram::Ram;
use crate::simulator::rng::Rng;

/// Keys of a machine's regions.
pub(super) const OUTGOING_KEY: u32 = 0x0101;
pub(super) const INCOMING_KEY: u32 = 0x0202;
pub(super) const RESULTS_KEY: u32 = 0x0303;
pub(super) const WORDS_KEY: u32 = 0x0404;

/// Q_Key of the group.
pub(super) const QKEY: QKey = QKey::RDMA_CM;
/// Bytes of one atomic word.
pub(super) const WORD_BYTES: usize = 8;
/// Local ACK timeout, 4.096 µs × 2^n: 67 ms.
const TIMEOUT_EXP: u8 = 14;
/// How long a sender waits after an RNR NAK: code for 10.24 ms (IBTA 9.7.5.2.8).
const MIN_RNR_TIMER: u8 = 20;

/// A machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) addr: IpAddr,
    pub(super) memory: MemoryTable,
    pub(super) ram: Ram,
    /// Address and content of the memory that it sends from.
    pub(super) outgoing: (u64, Noise),
    pub(super) incoming_addr: u64,
    pub(super) results_addr: u64,
    pub(super) words_addr: u64,
    ip_id: u16,
}

/// A queue pair of an exchange.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: usize,
    pub(super) qp: QueuePair,
    /// The other end of a connection.
    pub(super) peer: Option<EndIndex>,
    pub(super) next_op: usize,
    pub(super) posted_bytes: u32,
}

impl Machine {
    /// A machine with `outgoing` bytes to send, the same room for receives, and room for results.
    pub(super) fn new(
        host: usize,
        [outgoing, incoming, results]: [usize; 3],
        rng: &mut Rng,
    ) -> Result<Self, Violation> {
        let noise = Noise::draw(rng);
        let mut machine = Self {
            addr: Ipv4Addr::new(10, 9, 0, host as u8 + 1).into(),
            memory: MemoryTable::new(8),
            ram: Ram::new(),
            outgoing: (0, noise),
            incoming_addr: 0,
            results_addr: 0,
            words_addr: 0,
            ip_id: rng.next_u32() as u16,
        };
        let written = Access::LOCAL_WRITE;
        let bytes = noise.bytes(outgoing).to_vec();
        machine.outgoing.0 = machine.register(OUTGOING_KEY, bytes, Access::empty(), rng)?;
        machine.incoming_addr = machine.register(INCOMING_KEY, vec![0; incoming], written, rng)?;
        machine.results_addr = machine.register(RESULTS_KEY, vec![0; results], written, rng)?;
        let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let words = vec![0; WORDS * WORD_BYTES];
        machine.words_addr = machine.register(WORDS_KEY, words, atomic, rng)?;
        Ok(machine)
    }

    /// Allocates and registers memory. The first byte's address is a multiple of eight.
    fn register(
        &mut self,
        key: u32,
        mut bytes: Vec<u8>,
        access: Access,
        rng: &mut Rng,
    ) -> Result<u64, Violation> {
        let length = bytes.len() as u64;
        // Skip bytes at the front until the address is aligned.
        let spare = bytes.len() + WORD_BYTES;
        bytes.resize(spare, 0);
        let base = self.ram.allocate(bytes.clone(), rng);
        let addr = base.next_multiple_of(WORD_BYTES as u64);
        self.ram.write(addr, &bytes[..length as usize])?;
        let region = Region {
            pd: PD,
            iova: addr,
            addr,
            length,
            access,
        };
        let inserted = self.memory.insert(key, region);
        inserted.map_err(|error| violation!("memory was not registered: {error}"))?;
        Ok(addr)
    }

    pub(super) fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// The word at an address, in host byte order.
    pub(super) fn word(&self, addr: u64) -> Result<u64, Violation> {
        let bytes = self.ram.read(addr, WORD_BYTES)?;
        let bytes = bytes
            .first_chunk()
            .ok_or_else(|| violation!("a short word"))?;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// The memory of a receive.
    pub(super) fn place(&self, number: u64, len: u32) -> Sge {
        Sge {
            addr: self.incoming_addr + number * u64::from(len),
            length: len,
            lkey: INCOMING_KEY,
        }
    }
}

impl End {
    pub(super) fn new(
        host: usize,
        qpn: Qpn,
        peer: Option<EndIndex>,
        plan: &Plan,
        client: &ClientPlan,
        srq: Option<&Arc<Shared>>,
    ) -> Result<Self, Violation> {
        let depth = client.ops.len().max(1) as u32;
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: plan.receives.max(1) as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let config = QpConfig {
            qpn,
            pd: PD,
            init: QpInit {
                qp_type: client.qp_type,
                cap,
                sq_sig_all: true,
            },
            limits: QpLimits::default(),
            flow: plan.flow,
        };
        let qp = match srq {
            Some(srq) => QueuePair::with_shared_receives(config, srq.clone()),
            None => QueuePair::new(config),
        };
        let qp = qp.map_err(|error| violation!("no queue pair: {error}"))?;
        Ok(Self {
            host,
            qp,
            peer,
            next_op: 0,
            posted_bytes: 0,
        })
    }

    /// Moves through INIT, RTR and RTS towards `dest_qpn`. `psns`: the first one received, the
    /// first one sent.
    pub(super) fn make_ready(
        &mut self,
        dest_qpn: Qpn,
        psns: [portolan_wire::Psn; 2],
        plan: &Plan,
        client: &ClientPlan,
    ) -> Result<(), Violation> {
        use QpAttrMask as M;
        let attr = QpAttr {
            path_mtu: plan.mtu,
            rq_psn: psns[0],
            sq_psn: psns[1],
            dest_qpn,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            qkey: QKEY,
            max_rd_atomic: client.depth,
            max_dest_rd_atomic: client.depth,
            min_rnr_timer: MIN_RNR_TIMER,
            timeout: TIMEOUT_EXP,
            retry_cnt: 7,
            rnr_retry: plan.rnr_retry,
            ..QpAttr::default()
        };
        let reliable_rtr = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let reliable_rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let connected_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let [init, rtr, rts] = match client.qp_type {
            QpType::Ud => [M::QKEY, M::empty(), M::SQ_PSN],
            QpType::Uc => [M::ACCESS_FLAGS, connected_rtr, M::SQ_PSN],
            _ => [
                M::ACCESS_FLAGS,
                connected_rtr | reliable_rtr,
                M::SQ_PSN | reliable_rts,
            ],
        };
        for (state, mask) in [
            (QpState::Init, init | M::PKEY_INDEX | M::PORT),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            self.modify(&QpAttr { state, ..attr }, mask | M::STATE)?;
        }
        Ok(())
    }

    pub(super) fn fail(&mut self) -> Result<(), Violation> {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        self.modify(&attr, QpAttrMask::STATE)
    }

    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Violation> {
        let (from, to) = (self.qp.state(), attr.state);
        let modified = self.qp.modify(attr, mask);
        modified.map_err(|error| violation!("queue pair not moved from {from} to {to}: {error}"))
    }

    /// The next packet to send, without its ICRC, and whether it goes to the group.
    pub(super) fn next_packet(
        &mut self,
        now: Duration,
        machine: &Machine,
    ) -> Result<Option<(Vec<u8>, bool)>, Violation> {
        let transmit = self
            .qp
            .poll_transmit(now, &machine.memory, PACKET_BYTES_MAX);
        let Some(transmit) = transmit else {
            return Ok(None);
        };
        let bytes = match transmit.payload {
            Payload::Inline(bytes) => assemble(&transmit.headers, &[bytes])?,
            Payload::Segments(segments) => {
                let parts = segments
                    .iter()
                    .map(|part| machine.ram.read(part.addr, part.len as usize));
                assemble(&transmit.headers, &parts.collect::<Result<Vec<_>, _>>()?)?
            }
        };
        Ok(Some((bytes, transmit.path.is_some())))
    }
}

/// The server's shared receive queue under its lock, with what the oracle knows of it.
#[derive(Debug)]
pub(super) struct Shared(Mutex<Watched>);

#[derive(Debug)]
struct Watched {
    queue: SharedReceiveQueue,
    /// The limit, until it is reached; then 0.
    limit: usize,
    told: u32,
    fault: Option<Violation>,
}

impl Shared {
    pub(super) fn new(plan: &Plan) -> Result<Arc<Self>, Violation> {
        let attr = SrqAttr {
            max_wr: plan.receives.max(1) as u32,
            max_sge: 1,
            srq_limit: plan.srq_limit,
        };
        let limits = QpLimits::default();
        let queue = SharedReceiveQueue::new(Srqn(1), PD, &attr, attr.max_wr, &limits);
        let queue = queue.map_err(|error| violation!("no shared receive queue: {error}"))?;
        Ok(Arc::new(Self(Mutex::new(Watched {
            queue,
            limit: plan.srq_limit as usize,
            told: 0,
            fault: None,
        }))))
    }

    pub(super) fn post(&self, wr_id: u64, sge: Sge) -> Result<(), Violation> {
        let posted = self.lock().queue.post(&RecvWr {
            wr_id,
            sges: &[sge],
        });
        posted.map_err(|error| violation!("receive {wr_id}: {error}"))
    }

    /// Waiting receives, and the number of limit events.
    pub(super) fn check(&self) -> Result<(usize, u32), Violation> {
        let mut watched = self.lock();
        match watched.fault.take() {
            Some(fault) => Err(fault),
            None => Ok((watched.queue.len(), watched.told)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveSource for Shared {
    fn pd(&self) -> PdId {
        PD
    }

    fn take(&self, spare: Vec<Sge>) -> Option<ReceiveEntry> {
        let watched = &mut *self.lock();
        let entry = watched.queue.take(spare);
        let left = watched.queue.len();
        let is_due = entry.is_some() && left < watched.limit;
        let is_told = watched.queue.take_limit_event();
        if is_told != is_due {
            let limit = watched.limit;
            watched.fault = Some(violation!(
                "{left} receives are left of a limit of {limit}, limit event: {is_told}"
            ));
        }
        if is_due {
            watched.limit = 0;
            watched.told += 1;
        }
        entry
    }
}

/// Draws distinct queue pair numbers.
pub(super) fn draw_qpns(count: usize, rng: &mut Rng) -> Vec<Qpn> {
    let mut drawn = BTreeMap::new();
    while drawn.len() < count {
        let qpn = 0x1_0000 + rng.below(0xE0_0000) as u32;
        let place = drawn.len();
        drawn.entry(qpn).or_insert(place);
    }
    drawn.into_keys().map(Qpn::new).collect()
}

/// The address of the group.
pub(super) fn group() -> SocketAddr {
    SocketAddr::from(([239, 9, 9, 9], crate::simulator::packet::ROCE_PORT))
}
