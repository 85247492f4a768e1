//! Random work in both directions over a network that loses, repeats and reorders, compared with the promises
//! of the operations: each message arrives once and in order or an error is reported, and every work request
//! completes once.
//!
//! One seed is one run. A failure prints its seed. `PORTOLAN_ENGINE_SEED=n` runs only that seed,
//! `PORTOLAN_ENGINE_SEEDS=n` that many.
//! One seed is one run. A failure names its seed; `PORTOLAN_ENGINE_SEED=n` runs that one alone,
//! `PORTOLAN_ENGINE_SEEDS=n` so many.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use portolan_provider::verbs::{
    Mtu, QpAttr, QpState, RemoteAddr, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_roce::engine::FlowConfig;

use crate::harness::*;

/// Default number of seeds.
const SEEDS: u64 = 2000;

/// Maximum operations per host. Each has its own slot in each area of memory.
const OPERATIONS_MAX: u64 = 40;
const SLOT_BYTES: u64 = 6144;

/// Areas of a host's memory: data to send, write or be read, then slots for the peer's writes, for read data
/// and for receives.
/// read data and for receives.
const SOURCE: u64 = 0;
const WRITTEN: u64 = 0x4_0000;
const READ: u64 = 0x8_0000;
const RECEIVED: u64 = 0xC_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    kind: Kind,
    /// Offset in the source area.
    offset: u64,
    len: u32,
}

impl Operation {
    fn random(rng: &mut Rng) -> Self {
        let kinds = [
            Kind::Send,
            Kind::SendWithImm,
            Kind::Write,
            Kind::WriteWithImm,
            Kind::Read,
        ];
        let len = match rng.below(4) {
            0 => rng.below(4),
            1 => rng.below(300),
            _ => rng.below(SLOT_BYTES + 1),
        };
        Self {
            kind: kinds[rng.below(5) as usize],
            offset: rng.below(WRITTEN - SLOT_BYTES),
            // At most a slot.
            len: len as u32,
        }
    }

    fn takes_receive(&self) -> bool {
        !matches!(self.kind, Kind::Write | Kind::Read)
    }
}

/// A fault apart from the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    /// An operation with an unknown key.
    WrongKey,
    /// A message longer than the receive.
    TooLong,
    /// One side moves to ERR.
    ModifiedToErr,
    /// The network stops delivering.
    Partition,
}

struct Run {
    pair: Pair,
    rng: Rng,
    /// The operations of each host, and how many are posted.
    operations: [Vec<Operation>; 2],
    posted: [usize; 2],
    receives_posted: [u64; 2],
    mishap: Mishap,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mishap = match rng.below(10) {
            0 => Mishap::WrongKey,
            1 => Mishap::TooLong,
            2 => Mishap::ModifiedToErr,
            3 => Mishap::Partition,
            _ => Mishap::None,
        };
        let flow = FlowConfig {
            window_initial_bytes: 1 << (10 + rng.below(8)),
            window_min_bytes: 1 << (8 + rng.below(6)),
            read_request_bytes_max: 1 << (9 + rng.below(5)),
            ack_interval_bytes: 1 << rng.below(18),
            ..FlowConfig::default()
        };
        let mut pair = Pair::new(Options {
            seed: rng.next(),
            sends_first: rng.below(2) == 1,
            mtu: [Mtu::Mtu256, Mtu::Mtu1024][rng.below(2) as usize],
            psn: 0xFF_FFFF_u32.wrapping_sub(rng.below(200) as u32),
            timeout: 16,
            min_rnr_timer: 1 + rng.below(13) as u8,
            rd_atomic: 1 + rng.below(4) as u8,
            flow,
            ..Options::default()
        });
        pair.network.faults = Faults {
            lost_permille: rng.below(150),
            repeated_permille: rng.below(100),
            delayed_permille: rng.below(200),
        };
        for (index, host) in pair.hosts.iter_mut().enumerate() {
            host.fill(SOURCE, WRITTEN as usize, seed + index as u64);
        }
        let operations = [0; 2].map(|_| {
            let count = rng.below(OPERATIONS_MAX + 1);
            (0..count).map(|_| Operation::random(&mut rng)).collect()
        });
        Self {
            pair,
            rng,
            operations,
            posted: [0; 2],
            receives_posted: [0; 2],
            mishap,
        }
    }

    /// Posts everything in a random order, with random pauses.
    fn drive(&mut self) {
        let mishap_at = self.rng.below(100);
        for step in 0..400 {
            if step == mishap_at {
                self.cause_mishap();
            }
            let host = self.rng.below(2) as usize;
            match self.rng.below(4) {
                0 => self.post_receive(host),
                1 => self.pair.settle(Duration::from_micros(self.rng.below(400))),
                _ => self.post_operation(host),
            }
        }
        for host in [0, 1] {
            while self.receives_posted[host] < OPERATIONS_MAX {
                self.post_receive(host);
            }
            while self.posted[host] < self.operations[host].len() {
                self.post_operation(host);
            }
        }
        self.pair.run();
    }

    fn post_receive(&mut self, host: usize) {
        let slot = self.receives_posted[host];
        if slot < OPERATIONS_MAX {
            let host_of = &mut self.pair.hosts[host];
            let (first, second) = (1000, SLOT_BYTES as u32 - 1000);
            let at = RECEIVED + slot * SLOT_BYTES;
            let pieces = [piece(host_of, at, first), piece(host_of, at + 1000, second)];
            post_recv(host_of, slot, &pieces);
            self.receives_posted[host] += 1;
        }
    }

    fn post_operation(&mut self, host: usize) {
        let slot = self.posted[host];
        let Some(operation) = self.operations[host].get(slot).copied() else {
            return;
        };
        let slot_at = slot as u64 * SLOT_BYTES;
        let peer_place = remote(&self.pair.hosts[1 - host], WRITTEN + slot_at);
        let peer_source = remote(&self.pair.hosts[1 - host], SOURCE + operation.offset);
        let host_of = &mut self.pair.hosts[host];
        let imm = slot as u32;
        let (op, local) = match operation.kind {
            Kind::Send => (SendOp::Send, operation.offset),
            Kind::SendWithImm => (SendOp::SendWithImm(imm), operation.offset),
            Kind::Write => (SendOp::RdmaWrite(peer_place), operation.offset),
            Kind::WriteWithImm => (SendOp::RdmaWriteWithImm(peer_place, imm), operation.offset),
            Kind::Read => (SendOp::RdmaRead(peer_source), READ + slot_at),
        };
        let pieces = cut(host_of, local, operation.len, &mut self.rng);
        post(host_of, slot as u64, op, &pieces);
        self.posted[host] += 1;
    }

    fn cause_mishap(&mut self) {
        let bad = RemoteAddr {
            addr: 0,
            rkey: 0xBAD,
        };
        let host = self.rng.below(2) as usize;
        let left = &mut self.pair.hosts[host];
        match self.mishap {
            Mishap::None => {}
            Mishap::WrongKey => post(left, 999, SendOp::RdmaWrite(bad), &[piece(left, 0, 5)]),
            Mishap::TooLong => {
                let long = piece(left, 0, SLOT_BYTES as u32 + 1);
                post(left, 999, SendOp::Send, &[long]);
            }
            Mishap::ModifiedToErr => {
                left.modify(&QpAttr {
                    state: QpState::Err,
                    ..QpAttr::default()
                });
            }
            Mishap::Partition => self.pair.network.faults.lost_permille = 1000,
        }
    }

    fn check(&mut self) {
        if self.mishap == Mishap::None {
            assert_eq!(self.pair.states(), [QpState::Rts; 2]);
        }
        for host in &mut self.pair.hosts {
            assert_eq!(host.qp.poll_timeout(), None, "no timer outlives the work");
            host.modify(&QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            });
        }
        for host in [0, 1] {
            self.check_sends(host);
            self.check_receives(host);
        }
    }

    /// Checks a host's sends: all complete, in order. Those before the first failure succeeded, and their data
    /// are in place.
    fn check_sends(&self, host: usize) {
        let (own, peer) = (&self.pair.hosts[host], &self.pair.hosts[1 - host]);
        let completions: Vec<_> = own.sends.iter().filter(|wc| wc.wr_id != 999).collect();
        let names: Vec<_> = completions.iter().map(|wc| wc.wr_id).collect();
        let all: Vec<_> = (0..self.operations[host].len() as u64).collect();
        assert_eq!(names, all);
        assert_error_once(own.sends.iter());
        if self.mishap == Mishap::None {
            assert!(completions.iter().all(|wc| wc.status == WcStatus::Success));
        }
        let successes = completions
            .iter()
            .filter(|wc| wc.status == WcStatus::Success);
        for (wc, operation) in successes.zip(&self.operations[host]) {
            let (slot_at, len) = (wc.wr_id * SLOT_BYTES, operation.len as usize);
            let rest = SLOT_BYTES as usize - len;
            let (target, source) = match operation.kind {
                Kind::Write | Kind::WriteWithImm => ((peer, WRITTEN + slot_at), own),
                Kind::Read => ((own, READ + slot_at), peer),
                Kind::Send | Kind::SendWithImm => continue,
            };
            let (holder, at) = target;
            assert!(
                holder.bytes(at, len) == source.bytes(operation.offset, len),
                "{operation:?}"
            );
            assert!(
                holder
                    .bytes(at + len as u64, rest)
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
    }

    /// Checks a host's receives: all complete, in order. The successful ones have the peer's messages, one by
    /// one.
    fn check_receives(&self, host: usize) {
        let (own, peer) = (&self.pair.hosts[host], &self.pair.hosts[1 - host]);
        let names: Vec<_> = own.receives.iter().map(|(wc, _)| wc.wr_id).collect();
        let all: Vec<_> = (0..OPERATIONS_MAX).collect();
        assert_eq!(names, all);
        assert_error_once(own.receives.iter().map(|(wc, _)| wc));
        let messages: Vec<_> = self.operations[1 - host]
            .iter()
            .enumerate()
            .filter(|(_, operation)| operation.takes_receive())
            .collect();
        let arrived: Vec<_> = own
            .receives
            .iter()
            .filter(|(wc, _)| wc.status == WcStatus::Success)
            .collect();
        assert!(arrived.len() <= messages.len());
        let sent = peer.sends.iter().filter(|wc| {
            let operation = self.operations[1 - host].get(wc.wr_id as usize);
            wc.status == WcStatus::Success && operation.is_some_and(Operation::takes_receive)
        });
        assert!(
            sent.count() <= arrived.len(),
            "messages reported as sent have arrived"
        );
        for ((wc, _), (index, operation)) in arrived.iter().zip(messages) {
            let len = operation.len as usize;
            assert_eq!(wc.byte_len, operation.len);
            let imm = (operation.kind != Kind::Send).then_some(index as u32);
            assert_eq!(wc.imm_data, imm);
            let at = RECEIVED + wc.wr_id * SLOT_BYTES;
            if operation.kind == Kind::WriteWithImm {
                assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
            } else {
                assert!(
                    own.bytes(at, len) == peer.bytes(operation.offset, len),
                    "{operation:?}"
                );
            }
        }
    }
}

/// `len` bytes at `offset`, in up to eight pieces of random length, possibly empty.
fn cut(host: &Host, offset: u64, len: u32, rng: &mut Rng) -> Vec<Sge> {
    let (mut at, mut left) = (offset, len);
    let mut pieces = Vec::new();
    for _ in 0..rng.below(8) {
        let length = rng.below(2 + u64::from(left) / 2).min(left.into()) as u32;
        pieces.push(piece(host, at, length));
        at += u64::from(length);
        left -= length;
    }
    pieces.push(piece(host, at, left));
    pieces
}

/// Successes, then flushed work with at most one cause among it. Flushed work may precede the cause: a read
/// whose data were lost has no outcome if the peer refused something after it.
fn assert_error_once<'a>(completions: impl Iterator<Item = &'a WorkCompletion>) {
    let failed = completions
        .map(|wc| wc.status)
        .skip_while(|s| *s == WcStatus::Success);
    let causes: Vec<_> = failed
        .filter(|status| *status != WcStatus::WrFlushErr)
        .collect();
    assert!(
        causes.len() <= 1 && !causes.contains(&WcStatus::Success),
        "{causes:?}"
    );
}

#[test]
fn every_message_arrives_once_and_in_order_or_an_error_is_reported() {
    let setting = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    let seeds = match setting("PORTOLAN_ENGINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("PORTOLAN_ENGINE_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut run = Run::new(seed);
            run.drive();
            run.check();
        }));
        if let Err(panic) = outcome {
            eprintln!("failing seed: PORTOLAN_ENGINE_SEED={seed}");
            resume_unwind(panic);
        }
    }
}
