//! Two processes of one host: one copies its writes into the other's memory itself, or asks the other to copy.
//!
//! The engines are the real ones. The table of rights, the announcements, the gate and the rings are modelled, one step
//! of one process at a time, as crates/roce/src/io does them. Meanwhile the target withdraws a region and uses its memory
//! for something else, and the initiator is stopped before a copy.

use std::collections::VecDeque;
use std::time::Duration;

use portolan_provider::verbs::{
    Access, Mtu, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, RemoteAddr, SendData,
    SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use portolan_roce::engine::{
    CompactWrite, FlowConfig, MemoryTable, Payload, QpConfig, QpLimits, Queue, QueuePair, Region,
};
use portolan_wire::rocev2::Packet;
use portolan_wire::{Psn, Qpn};

use super::content::Noise;
use super::device::{PACKET_BYTES_MAX, PD};
use super::failure::{Violation, ensure, violation};
use super::library::{Mutant, is_planted};
use super::packet::assemble;
use super::ram::Ram;
use super::report::Tally;
use super::rng::Rng;

/// The target's regions: writable, only readable, and withdrawn at some time.
const WRITABLE: u32 = 1;
const READABLE: u32 = 2;
const DOOMED: u32 = 3;
/// The initiator's region.
const OUTGOING: u32 = 9;
/// Bytes of a region.
const LEN: usize = 6000;
const WRITES_MAX: u64 = 12;
/// Parts in which a write is copied.
const PARTS: usize = 3;
/// Steps that the target waits for an announcement before it closes the gate.
const PATIENCE: u32 = 20;
/// Limit on the steps, to detect a run that does not end.
const STEPS_MAX: u32 = 100_000;
/// What withdrawn memory is used for.
const OTHER_USE: u8 = 0x77;

#[derive(Debug)]
pub(super) struct OneHost {
    now: Duration,
    initiator: Side,
    target: Side,
    outgoing: u64,
    /// Address and content of the target's regions, by key.
    regions: [(u64, Noise); 4],
    to_target: VecDeque<Record>,
    to_initiator: VecDeque<Record>,
    // The initiator's part.
    way: Way,
    stage: Stage,
    /// The write that is posted: the key of its region, and its bytes.
    write: Option<(u32, Noise, usize)>,
    writes_left: u64,
    /// The key whose use is announced.
    announced: Option<u32>,
    /// The gate that was told when the use was announced.
    gate_seen: u32,
    /// Steps for which it is stopped.
    stopped: u64,
    // The target's part.
    gate: u32,
    withdrawal: Withdrawal,
    /// What it copies for the initiator: the destination, the bytes, and how many of them are copied.
    copying: Option<(u64, Vec<u8>, usize)>,
    rng: Rng,
}

#[derive(Debug)]
struct Side {
    qp: QueuePair,
    memory: MemoryTable,
    ram: Ram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The initiator copies.
    Direct,
    /// The same, and a record takes a receive.
    Placed,
    /// The target copies.
    Pulled,
}

/// Where the initiator is with its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Posted,
    Announced,
    Checked,
    /// Within its copy, with so many bytes copied.
    Copying(usize),
    /// The target is asked to copy.
    Asked,
    /// Packets or a record are on their way.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withdrawal {
    Not,
    /// With the steps waited.
    Waiting(u32),
    Done,
}

#[derive(Debug)]
enum Record {
    Packet(Vec<u8>),
    Write(CompactWrite),
    Ask {
        rkey: u32,
        addr: u64,
        from: u64,
        len: u32,
    },
    Answer {
        is_done: bool,
    },
}

impl OneHost {
    pub(super) fn new(rng: &mut Rng) -> Result<Self, Violation> {
        let qpns = [Qpn::new(0x02_0011), Qpn::new(0x03_0022)];
        let mut initiator = Side::new(qpns)?;
        let mut target = Side::new([qpns[1], qpns[0]])?;
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let outgoing = initiator.register(OUTGOING, Noise::draw(rng), Access::empty(), rng)?;
        let mut regions = [(0, Noise::draw(rng)); 4];
        for (key, access) in [
            (WRITABLE, writable),
            (READABLE, Access::REMOTE_READ),
            (DOOMED, writable),
        ] {
            let noise = Noise::draw(rng);
            regions[key as usize] = (target.register(key, noise, access, rng)?, noise);
        }
        for wr_id in 0..WRITES_MAX {
            let posted = target.qp.post_recv(&RecvWr { wr_id, sges: &[] });
            posted.map_err(|error| violation!("receive {wr_id}: {error}"))?;
        }
        Ok(Self {
            now: Duration::ZERO,
            initiator,
            target,
            outgoing,
            regions,
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            way: Way::Direct,
            stage: Stage::Posted,
            write: None,
            writes_left: rng.between(1, WRITES_MAX),
            announced: None,
            gate_seen: 0,
            stopped: 0,
            gate: 1,
            withdrawal: Withdrawal::Not,
            copying: None,
            rng: rng.fork(),
        })
    }

    /// Runs until all writes are complete or one is refused, and the region is withdrawn.
    pub(super) fn run(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        for _ in 0..STEPS_MAX {
            self.now += Duration::from_micros(1);
            let is_over = self.write.is_none() && self.writes_left == 0;
            if is_over && self.withdrawal == Withdrawal::Done {
                return self.check_regions();
            }
            if self.stopped > 0 {
                self.stopped -= 1;
            }
            match self.rng.percent(50) && self.stopped == 0 {
                true => self.step_initiator(tally)?,
                false => self.step_target(tally)?,
            }
        }
        let (stage, withdrawal) = (self.stage, self.withdrawal);
        Err(violation!(
            "nothing moves: {stage:?}, {withdrawal:?}, {:?}",
            self.write
        ))
    }

    fn check_regions(&self) -> Result<(), Violation> {
        let (addr, noise) = self.regions[READABLE as usize];
        let found = self.target.ram.read(addr, LEN)?;
        ensure!(
            found == noise.bytes(LEN),
            "memory was written to without the right"
        );
        let (addr, _) = self.regions[DOOMED as usize];
        let found = self.target.ram.read(addr, LEN)?;
        ensure!(
            found.iter().all(|byte| *byte == OTHER_USE),
            "memory was written to after its withdrawal"
        );
        Ok(())
    }

    fn step_initiator(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        if let Some(record) = self.to_initiator.pop_front() {
            match record {
                Record::Packet(bytes) => self.initiator.receive(self.now, &bytes)?,
                Record::Answer { is_done } => {
                    let is_alive = self.initiator.qp.release_requests();
                    if is_done && is_alive {
                        self.initiator.qp.complete_direct();
                    }
                    self.stage = Stage::Sent;
                }
                Record::Write(_) | Record::Ask { .. } => {
                    return Err(violation!("the target sends a request"));
                }
            }
            return self.take_completions(tally);
        }
        let Some((key, noise, len)) = self.write else {
            return self.post();
        };
        let (addr, _) = self.regions[key as usize];
        match self.stage {
            Stage::Posted if self.way == Way::Pulled => {
                let side = &mut self.initiator;
                let may_ask = side.qp.poll_direct(&side.memory).is_some();
                ensure!(
                    may_ask,
                    "nothing is in flight, but the peer may not be asked"
                );
                side.qp.hold_requests();
                let (rkey, from, len) = (key, self.outgoing, len as u32);
                self.to_target.push_back(Record::Ask {
                    rkey,
                    addr,
                    from,
                    len,
                });
                self.stage = Stage::Asked;
            }
            Stage::Posted => {
                self.gate_seen = self.gate;
                self.announced = Some(key);
                self.stage = Stage::Announced;
            }
            Stage::Announced => {
                let may_write =
                    key == WRITABLE || key == DOOMED && self.withdrawal == Withdrawal::Not;
                self.stage = match may_write || is_planted(Mutant::RightUnchecked) {
                    true => Stage::Checked,
                    false => Stage::Sent,
                };
                if self.stage == Stage::Sent {
                    self.announced = None;
                } else if self.rng.percent(10) {
                    self.stopped = self.rng.between(1, 40 * u64::from(PATIENCE));
                }
                if self.way == Way::Placed && is_planted(Mutant::RecordBeforeData) {
                    self.send_record()?;
                }
            }
            // The first piece of the copy is the gate.
            Stage::Checked if self.gate_seen == self.gate => self.stage = Stage::Copying(0),
            Stage::Checked => {
                tally.count("copy ended at the gate");
                self.announced = None;
                self.stage = Stage::Sent;
            }
            Stage::Copying(done) if done < len => {
                let end = len.min(done + len.div_ceil(PARTS));
                let part = &noise.bytes(len)[done..end];
                self.target.ram.write(addr + done as u64, part)?;
                self.stage = Stage::Copying(end);
            }
            Stage::Copying(_) => {
                self.announced = None;
                self.stage = Stage::Sent;
                if self.way == Way::Placed {
                    self.send_record()?;
                } else {
                    tally.count("write copied by its initiator");
                    self.initiator.qp.complete_direct();
                    self.take_completions(tally)?;
                }
            }
            Stage::Asked => {}
            Stage::Sent => {
                self.initiator.send(self.now, &mut self.to_target)?;
                self.take_completions(tally)?;
            }
        }
        Ok(())
    }

    /// Posts the next write.
    fn post(&mut self) -> Result<(), Violation> {
        if self.writes_left == 0 {
            return Ok(());
        }
        self.writes_left -= 1;
        let key = match self.rng.below(8) {
            0 => READABLE,
            1..=3 => DOOMED,
            _ => WRITABLE,
        };
        let len = self.rng.between(1, LEN as u64) as usize;
        let noise = Noise::draw(&mut self.rng);
        self.way = self.rng.pick(&[Way::Direct, Way::Placed, Way::Pulled]);
        self.initiator.ram.write(self.outgoing, noise.bytes(len))?;
        let addr = self.regions[key as usize].0;
        let remote = RemoteAddr { addr, rkey: key };
        let sge = Sge {
            addr: self.outgoing,
            length: len as u32,
            lkey: OUTGOING,
        };
        let posted = self.initiator.qp.post_send(&SendWr {
            wr_id: u64::from(key),
            op: match self.way {
                Way::Placed => SendOp::RdmaWriteWithImm(remote, 5),
                _ => SendOp::RdmaWrite(remote),
            },
            data: SendData::Sges(&[sge]),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        });
        posted.map_err(|error| violation!("write not posted: {error}"))?;
        self.write = Some((key, noise, len));
        self.stage = Stage::Posted;
        Ok(())
    }

    /// Sends the record of a write whose bytes are at the target.
    fn send_record(&mut self) -> Result<(), Violation> {
        let side = &mut self.initiator;
        if let Some((direct, _)) = side.qp.poll_placeable(&side.memory) {
            let at = direct.addr;
            side.qp.note_placed(at);
        }
        if let Some((_, write)) = side.qp.poll_write(self.now, &side.memory) {
            self.to_target.push_back(Record::Write(write));
        }
        Ok(())
    }

    /// Checks the write that has completed at the initiator.
    fn take_completions(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        while let Some(completion) = self.initiator.qp.poll_completion() {
            let status = completion.wc.status;
            tally.completion(completion.queue, status);
            let Some((key, noise, len)) = self.write.take() else {
                return Err(violation!("a write completes twice"));
            };
            self.announced = None;
            if status != WcStatus::Success {
                let may_fail =
                    key == READABLE || key == DOOMED && self.withdrawal != Withdrawal::Not;
                ensure!(
                    may_fail && status == WcStatus::RemAccessErr,
                    "a write to region {key} ends with {status}"
                );
                // The queue pair has failed.
                self.writes_left = 0;
                continue;
            }
            ensure!(key != READABLE, "a write without the right succeeds");
            if key == WRITABLE || self.withdrawal == Withdrawal::Not {
                self.check_written(key, noise, len)?;
            }
        }
        Ok(())
    }

    fn check_written(&self, key: u32, noise: Noise, len: usize) -> Result<(), Violation> {
        let found = self.target.ram.read(self.regions[key as usize].0, len)?;
        ensure!(
            found == noise.bytes(len),
            "a write is reported before its bytes are there"
        );
        Ok(())
    }

    fn step_target(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        if let Some((to, bytes, done)) = self.copying.take() {
            // The memory table is locked: nothing is withdrawn meanwhile.
            let end = bytes.len().min(done + bytes.len().div_ceil(PARTS));
            self.target.ram.write(to + done as u64, &bytes[done..end])?;
            if end < bytes.len() {
                self.copying = Some((to, bytes, end));
            } else if !is_planted(Mutant::PulledAnsweredFirst) {
                tally.count("write copied by its target");
                self.to_initiator
                    .push_back(Record::Answer { is_done: true });
            }
            return Ok(());
        }
        match self.rng.below(10) {
            0 => self.withdraw(),
            1..=4 => self.target.send(self.now, &mut self.to_initiator),
            _ => self.take_request(),
        }
    }

    /// Withdraws the doomed region, or goes on with that.
    fn withdraw(&mut self) -> Result<(), Violation> {
        let waited = match self.withdrawal {
            Withdrawal::Not if self.rng.percent(10) => {
                let removed = self.target.memory.deregister(DOOMED);
                removed.map_err(|error| violation!("not deregistered: {error}"))?;
                0
            }
            Withdrawal::Waiting(waited) => waited + 1,
            Withdrawal::Not | Withdrawal::Done => return Ok(()),
        };
        self.withdrawal = Withdrawal::Waiting(waited);
        let is_used = self.announced == Some(DOOMED) && !is_planted(Mutant::WithdrawnRegionCopied);
        if is_used && waited == PATIENCE && !is_planted(Mutant::GateLeftOpen) {
            self.gate += 1;
        }
        // A thread within its copy cannot be stopped.
        let is_out = waited >= PATIENCE && self.stopped > 0;
        if !is_used || is_out {
            let (addr, _) = self.regions[DOOMED as usize];
            self.target.ram.write(addr, &[OTHER_USE; LEN])?;
            self.withdrawal = Withdrawal::Done;
        }
        Ok(())
    }

    fn take_request(&mut self) -> Result<(), Violation> {
        let side = &mut self.target;
        match self.to_target.pop_front() {
            None => {}
            Some(Record::Packet(bytes)) => side.receive(self.now, &bytes)?,
            Some(Record::Write(write)) => side.qp.take_write(self.now, &side.memory, &write),
            Some(Record::Answer { .. }) => return Err(violation!("the initiator answers")),
            Some(Record::Ask {
                rkey,
                addr,
                from,
                len,
            }) => {
                let to = side.qp.pulled_write(&side.memory, rkey, addr, len);
                let answers_now = to.is_none() || is_planted(Mutant::PulledAnsweredFirst);
                if answers_now {
                    let is_done = to.is_some();
                    self.to_initiator.push_back(Record::Answer { is_done });
                }
                if let Some(to) = to {
                    let bytes = self.initiator.ram.read(from, len as usize)?.to_vec();
                    self.copying = Some((to, bytes, 0));
                }
            }
        }
        while let Some(completion) = self.target.qp.poll_completion() {
            let is_good = completion.wc.status == WcStatus::Success;
            if let (Queue::Receive, true, Some((key, noise, len))) =
                (completion.queue, is_good, self.write)
                && (key == WRITABLE || self.withdrawal == Withdrawal::Not)
            {
                self.check_written(key, noise, len)?;
            }
        }
        Ok(())
    }
}

impl Side {
    fn new([qpn, peer]: [Qpn; 2]) -> Result<Self, Violation> {
        use QpAttrMask as M;
        let depth = WRITES_MAX as u32;
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (qp_type, sq_sig_all) = (QpType::Rc, true);
        let qp = QueuePair::new(QpConfig {
            qpn,
            pd: PD,
            init: QpInit {
                qp_type,
                cap,
                sq_sig_all,
            },
            limits: QpLimits::default(),
            flow: FlowConfig::default(),
        });
        let mut qp = qp.map_err(|error| violation!("no queue pair: {error}"))?;
        let attr = QpAttr {
            path_mtu: Mtu::Mtu1024,
            rq_psn: Psn::new(9),
            sq_psn: Psn::new(9),
            dest_qpn: peer,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, M::ACCESS_FLAGS | M::PKEY_INDEX | M::PORT),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let moved = qp.modify(&QpAttr { state, ..attr }, mask | M::STATE);
            moved.map_err(|error| violation!("queue pair not moved to {state}: {error}"))?;
        }
        Ok(Self {
            qp,
            memory: MemoryTable::new(8),
            ram: Ram::new(),
        })
    }

    /// Allocates and registers memory.
    fn register(
        &mut self,
        key: u32,
        noise: Noise,
        access: Access,
        rng: &mut Rng,
    ) -> Result<u64, Violation> {
        let addr = self.ram.allocate(noise.bytes(LEN).to_vec(), rng);
        let region = Region {
            pd: PD,
            iova: addr,
            addr,
            length: LEN as u64,
            access,
        };
        let inserted = self.memory.insert(key, region);
        inserted.map_err(|error| violation!("memory was not registered: {error}"))?;
        Ok(addr)
    }

    fn receive(&mut self, now: Duration, bytes: &[u8]) -> Result<(), Violation> {
        let packet = Packet::parse(bytes)
            .map_err(|error| violation!("the simulator's own packet does not parse: {error}"))?;
        self.qp.handle_packet(now, &self.memory, &packet);
        while let Some(placement) = self.qp.poll_placement() {
            let bytes = placement.bytes(packet.payload());
            let bytes = bytes.ok_or_else(|| violation!("placement beyond the payload"))?;
            self.ram.write(placement.addr, bytes)?;
        }
        Ok(())
    }

    /// Puts all packets that can be sent now into a ring.
    fn send(&mut self, now: Duration, ring: &mut VecDeque<Record>) -> Result<(), Violation> {
        loop {
            let Some(transmit) = self.qp.poll_transmit(now, &self.memory, PACKET_BYTES_MAX) else {
                return Ok(());
            };
            let bytes = match transmit.payload {
                Payload::Inline(bytes) => assemble(&transmit.headers, &[bytes])?,
                Payload::Segments(segments) => {
                    let parts = segments
                        .iter()
                        .map(|part| self.ram.read(part.addr, part.len as usize));
                    assemble(&transmit.headers, &parts.collect::<Result<Vec<_>, _>>()?)?
                }
            };
            ring.push_back(Record::Packet(bytes));
        }
    }
}
