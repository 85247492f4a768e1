//! Two queue pairs, work requests and state changes in any order, a network that loses, repeats, delays and
//! reorders packets, and forged packets: nothing panics, no byte outside registered memory is accessed, and no
//! work request completes twice.
#![no_main]

use std::collections::HashSet;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_provider::verbs::{
    Access, Mtu, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, RemoteAddr, SendData,
    SendFlags, SendOp, SendWr, Sge,
};
use portolan_roce::engine::{
    FlowConfig, MemoryTable, Payload, PdId, QpConfig, QpLimits, Queue, QueuePair, Region,
};
use portolan_wire::rocev2::{ICRC_LEN, MAX_HEADERS_LEN, Packet};
use portolan_wire::{Psn, Qpn};

const PD: PdId = PdId(7);
const KEY: u32 = 0x1000_0001;
const RAM_BYTES: usize = 1 << 14;
const OPERATIONS_MAX: usize = 200;
/// Packets in flight at most; the oldest are dropped.
const FLYING_MAX: usize = 128;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    unreliable: bool,
    operations: Vec<Operation<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Operation<'a> {
    Receive {
        side: bool,
        at: u16,
        len: u16,
    },
    Send {
        side: bool,
        kind: u8,
        at: u16,
        to: u16,
        len: u16,
        signaled: bool,
    },
    Transmit {
        side: bool,
        packets: u8,
    },
    Deliver {
        at: u8,
        copies: u8,
    },
    Lose {
        at: u8,
    },
    Forge {
        side: bool,
        bytes: &'a [u8],
    },
    Change {
        at: u8,
        byte: u8,
        value: u8,
    },
    Wait {
        us: u32,
    },
    Modify {
        side: bool,
        state: u8,
    },
}

struct Host {
    qp: QueuePair,
    memory: MemoryTable,
    ram: Vec<u8>,
    base: u64,
    posted: u64,
    completed: HashSet<(bool, u64)>,
}

struct Net {
    now: Duration,
    hosts: [Host; 2],
    flying: Vec<(usize, Vec<u8>)>,
}

fuzz_target!(|input: Input<'_>| {
    let qp_type = if input.unreliable {
        QpType::Uc
    } else {
        QpType::Rc
    };
    let mut net = Net {
        now: Duration::from_secs(1),
        hosts: [Host::new(0, qp_type), Host::new(1, qp_type)],
        flying: Vec::new(),
    };
    for operation in input.operations.iter().take(OPERATIONS_MAX) {
        net.apply(operation);
    }
});

impl Net {
    fn apply(&mut self, operation: &Operation<'_>) {
        let now = self.now;
        match *operation {
            Operation::Receive { side, at, len } => {
                self.hosts[usize::from(side)].post_recv(at, len);
            }
            Operation::Send {
                side,
                kind,
                at,
                to,
                len,
                signaled,
            } => {
                let remote = RemoteAddr {
                    addr: self.hosts[usize::from(!side)].base + u64::from(to),
                    rkey: KEY,
                };
                let op = match kind % 8 {
                    0 => SendOp::Send,
                    1 => SendOp::SendWithImm(7),
                    2 => SendOp::RdmaWrite(remote),
                    3 => SendOp::RdmaWriteWithImm(remote, 8),
                    4 => SendOp::RdmaRead(remote),
                    5 => SendOp::SendWithInv(KEY),
                    6 => SendOp::AtomicCmpSwap {
                        remote,
                        compare: 0,
                        swap: 1,
                    },
                    _ => SendOp::AtomicFetchAdd { remote, add: 1 },
                };
                self.hosts[usize::from(side)].post_send(op, at, len, signaled);
            }
            Operation::Transmit { side, packets } => {
                for _ in 0..packets % 32 {
                    let Some(packet) = self.hosts[usize::from(side)].next_packet(now) else {
                        break;
                    };
                    self.flying.push((usize::from(!side), packet));
                }
                let surplus = self.flying.len().saturating_sub(FLYING_MAX);
                self.flying.drain(..surplus);
            }
            Operation::Deliver { at, copies } => {
                if let Some((to, packet)) = self.take(at) {
                    for _ in 0..=copies % 3 {
                        self.hosts[to].receive(now, &packet);
                    }
                }
            }
            Operation::Lose { at } => drop(self.take(at)),
            Operation::Forge { side, bytes } => self.hosts[usize::from(side)].receive(now, bytes),
            Operation::Change { at, byte, value } => {
                if let Some((to, mut packet)) = self.take(at) {
                    let byte = usize::from(byte) % packet.len();
                    packet[byte] = value;
                    self.hosts[to].receive(now, &packet);
                }
            }
            Operation::Wait { us } => {
                self.now += Duration::from_micros(us.into());
                for host in &mut self.hosts {
                    host.qp.handle_timeout(self.now);
                    host.drain();
                }
            }
            Operation::Modify { side, state } => {
                let states = [
                    QpState::Reset,
                    QpState::Init,
                    QpState::Rtr,
                    QpState::Rts,
                    QpState::Err,
                ];
                let state = states[usize::from(state) % states.len()];
                self.hosts[usize::from(side)].modify(usize::from(side), state);
            }
        }
    }

    fn take(&mut self, at: u8) -> Option<(usize, Vec<u8>)> {
        let at = usize::from(at) % self.flying.len().max(1);
        (at < self.flying.len()).then(|| self.flying.remove(at))
    }
}

impl Host {
    fn new(index: usize, qp_type: QpType) -> Self {
        let base = 0x7000_0000_0000 + index as u64 * 0x1_0000_0000;
        let mut memory = MemoryTable::new(4);
        let region = Region {
            pd: PD,
            iova: base,
            addr: base,
            length: RAM_BYTES as u64,
            access: Access::all() - Access::MW_BIND,
        };
        memory.insert(KEY, region).expect("an empty table");
        let config = QpConfig {
            qpn: qpn(index),
            pd: PD,
            init: QpInit {
                qp_type,
                cap: QpCap {
                    max_send_wr: 16,
                    max_recv_wr: 16,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                sq_sig_all: false,
            },
            limits: QpLimits::default(),
            flow: FlowConfig::default(),
        };
        let mut host = Self {
            qp: QueuePair::new(config).expect("a modest queue pair"),
            memory,
            ram: vec![0; RAM_BYTES],
            base,
            posted: 0,
            completed: HashSet::new(),
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            host.modify(index, state);
        }
        assert_eq!(host.qp.state(), QpState::Rts);
        host
    }

    fn modify(&mut self, index: usize, state: QpState) {
        use QpAttrMask as M;
        let attr = QpAttr {
            state,
            path_mtu: Mtu::Mtu256,
            rq_psn: Psn::new(0xff_fff0),
            sq_psn: Psn::new(0xff_fff0),
            dest_qpn: qpn(1 - index),
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 3,
            rnr_retry: 3,
            ..QpAttr::default()
        };
        let reliable = self.qp.qp_type() == QpType::Rc;
        let mut mask = M::STATE
            | match state {
                QpState::Init => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
                QpState::Rtr => M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
                QpState::Rts => M::SQ_PSN,
                _ => M::empty(),
            };
        if reliable && state == QpState::Rtr {
            mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        }
        if reliable && state == QpState::Rts {
            mask |= M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        }
        // The engine decides whether the transition is legal.
        let _ = self.qp.modify(&attr, mask);
        self.drain();
    }

    fn sge(&self, at: u16, len: u16) -> Sge {
        Sge {
            addr: self.base + u64::from(at) % RAM_BYTES as u64,
            length: u32::from(len) % 2048,
            lkey: KEY,
        }
    }

    fn post_recv(&mut self, at: u16, len: u16) {
        let sges = [self.sge(at, len)];
        let wr_id = self.posted;
        self.posted += 1;
        let _ = self.qp.post_recv(&RecvWr { wr_id, sges: &sges });
        self.drain();
    }

    fn post_send(&mut self, op: SendOp, at: u16, len: u16, signaled: bool) {
        let sges = [self.sge(at, len)];
        let wr = SendWr {
            wr_id: self.posted,
            op,
            data: SendData::Sges(&sges),
            flags: if signaled {
                SendFlags::SIGNALED
            } else {
                SendFlags::empty()
            },
            ud: None,
            srq: None,
        };
        self.posted += 1;
        let _ = self.qp.post_send(&wr);
        self.drain();
    }

    /// A slice of memory. Panics if the engine asks for bytes outside it.
    fn slice(&mut self, addr: u64, len: usize) -> &mut [u8] {
        let at = addr.checked_sub(self.base).expect("within the region") as usize;
        self.ram.get_mut(at..at + len).expect("within the region")
    }

    fn receive(&mut self, now: Duration, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        self.qp.handle_packet(now, &self.memory, &packet);
        while let Some(placement) = self.qp.poll_placement() {
            let source = placement
                .bytes(packet.payload())
                .expect("its own packet")
                .to_vec();
            self.slice(placement.addr, source.len())
                .copy_from_slice(&source);
        }
        if let Some(operation) = self.qp.poll_atomic() {
            let word = self
                .slice(operation.addr, 8)
                .first_chunk_mut()
                .expect("eight bytes");
            let original = u64::from_ne_bytes(*word);
            *word = operation.kind.apply(original).to_ne_bytes();
            self.qp.complete_atomic(original);
        }
        self.drain();
    }

    fn next_packet(&mut self, now: Duration) -> Option<Vec<u8>> {
        let budget = MAX_HEADERS_LEN + 4096 + ICRC_LEN;
        let transmit = self.qp.poll_transmit(now, &self.memory, budget)?;
        let mut bytes = vec![0; transmit.headers.len()];
        transmit
            .headers
            .emit(&mut bytes)
            .expect("headers that fit their opcode");
        match transmit.payload {
            Payload::Inline(inline) => bytes.extend_from_slice(inline),
            Payload::Segments(segments) => {
                for segment in segments {
                    let at = segment
                        .addr
                        .checked_sub(self.base)
                        .expect("within the region") as usize;
                    let piece = self.ram.get(at..at + segment.len as usize);
                    bytes.extend_from_slice(piece.expect("within the region"));
                }
            }
        }
        let pad = usize::from(transmit.headers.bth.pad_count);
        bytes.resize(bytes.len() + pad + ICRC_LEN, 0);
        Packet::parse(&bytes).expect("engines send valid packets");
        self.drain();
        Some(bytes)
    }

    fn drain(&mut self) {
        while let Some(completion) = self.qp.poll_completion() {
            let is_send = completion.queue == Queue::Send;
            let wr_id = completion.wc.wr_id;
            assert!(wr_id < self.posted, "completions are of posted requests");
            assert!(
                self.completed.insert((is_send, wr_id)),
                "{wr_id} completed twice"
            );
        }
        while self.qp.poll_async_event().is_some() {}
    }
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(0x11 + index as u32)
}
