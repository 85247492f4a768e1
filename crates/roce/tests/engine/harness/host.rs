//! One host: does the I/O's work for its queue pair, with a vector as memory.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, AsyncEvent, Mtu, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, SendWr,
    WorkCompletion,
};
use portolan_roce::engine::{
    Compact, FlowConfig, MemoryTable, Payload, PdId, PlannedBytes, QpConfig, QpLimits, Queue,
    QueuePair, Region,
};
use portolan_wire::eth::AtomicAckEthRepr;
use portolan_wire::rocev2::{Headers, ICRC_LEN, MAX_HEADERS_LEN, Packet, pad_len};
use portolan_wire::{Psn, QKey, Qpn};

use super::{all_rights, parse};

/// Local and remote key of a region with all rights that covers a host's whole memory.
pub(crate) const KEY: u32 = 0x1000_0001;

/// The Q_Key of the hosts' UD queue pairs.
pub(crate) const QKEY: QKey = QKey(0x1122_3344);

/// The network header of every received packet.
pub(crate) const NETWORK_HEADER: [u8; 40] = [0xc5; 40];

/// Bytes of a host's memory.
pub(crate) const RAM_BYTES: usize = 1 << 20;

/// The protection domain of queue pair and memory.
const PD: PdId = PdId(7);

/// Parameters that a test may vary.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) qp_type: QpType,
    pub(crate) mtu: Mtu,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    /// Both directions start here.
    pub(crate) psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    pub(crate) access: Access,
    pub(crate) flow: FlowConfig,
    /// Whether the hosts call `poll_send_only` and `poll_acknowledgement` before `poll_transmit`, and `take_send` and
    /// `take_acknowledgement` before `handle_packet`.
    pub(crate) sends_first: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            qp_type: QpType::Rc,
            mtu: Mtu::Mtu1024,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline_data: 256,
            },
            sq_sig_all: false,
            psn: 100,
            timeout: 17,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            access: all_rights(),
            flow: FlowConfig::default(),
            sends_first: false,
        }
    }
}

pub(crate) struct Host {
    pub(crate) qp: QueuePair,
    pub(crate) memory: MemoryTable,
    pub(crate) ram: Vec<u8>,
    pub(crate) sends_first: bool,
    /// Address of the first byte of `ram`.
    pub(crate) base: u64,
    pub(crate) sends: Vec<WorkCompletion>,
    /// Completions of receives, and whether the peer solicited an event.
    pub(crate) receives: Vec<(WorkCompletion, bool)>,
    pub(crate) events: Vec<AsyncEvent>,
    /// Number of placements, to check that nothing is placed twice.
    pub(crate) placements: usize,
    /// Number of packets taken in their short form.
    pub(crate) taken: usize,
    /// Number of executed atomics, to check that none is executed twice.
    pub(crate) atomics: usize,
}

impl Host {
    pub(crate) fn new(index: u32, options: &Options) -> Self {
        Self::with(index, options, QueuePair::new)
    }

    /// A host with the queue pair made by `make`.
    pub(crate) fn with(
        index: u32,
        options: &Options,
        make: impl FnOnce(QpConfig) -> portolan_provider::Result<QueuePair>,
    ) -> Self {
        let base = 0x7000_0000_0000 + u64::from(index) * 0x1_0000_0000;
        let mut memory = MemoryTable::new(16);
        let region = Region {
            pd: PD,
            iova: base,
            addr: base,
            length: RAM_BYTES as u64,
            access: all_rights(),
        };
        memory.insert(KEY, region).expect("an empty table");
        let config = QpConfig {
            qpn: Self::qpn(index),
            pd: PD,
            init: QpInit {
                qp_type: options.qp_type,
                cap: options.cap,
                sq_sig_all: options.sq_sig_all,
            },
            limits: QpLimits::default(),
            flow: options.flow,
        };
        Self {
            qp: make(config).expect("a modest queue pair"),
            memory,
            ram: vec![0; RAM_BYTES],
            sends_first: options.sends_first,
            base,
            sends: Vec::new(),
            receives: Vec::new(),
            events: Vec::new(),
            placements: 0,
            taken: 0,
            atomics: 0,
        }
    }

    pub(crate) fn qpn(index: u32) -> Qpn {
        Qpn::new(0x11 + index)
    }

    fn index(&self) -> u32 {
        self.qp.qpn().value() - 0x11
    }

    /// Registers `length` bytes of memory at `offset` under another key.
    pub(crate) fn register(
        &mut self,
        key: u32,
        offset: u64,
        length: u64,
        access: Access,
        pd: PdId,
    ) {
        let iova = self.base + offset;
        let region = Region {
            pd,
            iova,
            addr: iova,
            length,
            access,
        };
        self.memory.insert(key, region).expect("a free key");
    }

    pub(crate) fn pd(&self) -> PdId {
        PD
    }

    pub(crate) fn connect(&mut self, options: &Options) {
        let attr = connect_attr(self.index(), options);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(&QpAttr { state, ..attr });
        }
    }

    /// Moves to the state in `attr` with the attributes that the state requires.
    pub(crate) fn modify(&mut self, attr: &QpAttr) {
        let mask = QpAttrMask::STATE | required(self.qp.qp_type(), attr.state);
        self.qp.modify(attr, mask).expect("a legal transition");
        self.drain();
    }

    /// The bytes at `offset`.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        &self.ram[offset as usize..][..len]
    }

    /// Fills `len` bytes at `offset` with a pattern that depends on `seed`.
    pub(crate) fn fill(&mut self, offset: u64, len: usize, seed: u64) {
        self.ram[offset as usize..][..len].copy_from_slice(&pattern(len, seed));
    }

    /// Receives a packet from the network.
    pub(crate) fn receive(&mut self, now: Duration, bytes: &[u8]) {
        let packet = parse(bytes);
        if self.sends_first && self.take(now, &packet) {
            self.taken += 1;
            return self.drain();
        }
        self.qp.handle_packet(now, &self.memory, &packet);
        while let Some(placement) = self.qp.poll_grh_placement() {
            let source = &NETWORK_HEADER[placement.source_range];
            let start = (placement.addr - self.base) as usize;
            self.ram[start..][..source.len()].copy_from_slice(source);
        }
        self.place(packet.payload());
        self.execute_atomic();
        self.change_memory();
        self.drain();
    }

    fn place(&mut self, payload: &[u8]) {
        while let Some(placement) = self.qp.poll_placement() {
            let source = placement.bytes(payload).expect("its own packet");
            let start = (placement.addr - self.base) as usize;
            self.ram[start..][..source.len()].copy_from_slice(source);
            self.placements += 1;
        }
    }

    fn execute_atomic(&mut self) {
        if let Some(operation) = self.qp.poll_atomic() {
            let start = (operation.addr - self.base) as usize;
            let word = self.ram[start..].first_chunk_mut().expect("eight bytes");
            let original = u64::from_ne_bytes(*word);
            *word = operation.kind.apply(original).to_ne_bytes();
            self.atomics += 1;
            self.qp.complete_atomic(original);
        }
    }

    /// Takes a packet in its short form, if it has one and the queue pair takes it.
    fn take(&mut self, now: Duration, packet: &Packet<'_>) -> bool {
        let Some(compact) = Compact::of_packet(&packet.headers(), packet.payload().len()) else {
            return false;
        };
        let compact = Compact::parse(&compact.emit()).expect("what was emitted");
        if let Some(ack) = &compact.acknowledgement {
            return self.qp.take_acknowledgement(now, &self.memory, ack);
        }
        if let Some(atomic) = &compact.atomic {
            let operands = packet.atomic_eth().expect("an atomic");
            let is_taken = self.qp.take_atomic(&self.memory, atomic, &operands);
            self.execute_atomic();
            return is_taken;
        }
        if let Some(answer) = &compact.atomic_ack {
            let value = packet.atomic_ack().expect("an answer");
            let qp = &mut self.qp;
            let is_taken = qp.take_atomic_ack(now, &self.memory, answer, value.original);
            self.place(&[]);
            return is_taken;
        }
        let send = compact.send.expect("a send or an acknowledgement");
        let Some(place) = self.qp.take_send(&self.memory, &send) else {
            return false;
        };
        if place.len > 0 {
            let start = (place.addr - self.base) as usize;
            self.ram[start..][..place.len as usize].copy_from_slice(packet.payload());
            self.placements += 1;
        }
        true
    }

    /// Applies a change to the memory table, if the engine asks for one.
    pub(crate) fn change_memory(&mut self) -> bool {
        let Some(operation) = self.qp.poll_memory_operation() else {
            return false;
        };
        let outcome = self.memory.apply(&operation);
        self.qp.complete_memory_operation(outcome);
        true
    }

    /// Receives a packet made by a test, at time zero.
    pub(crate) fn receive_headers(&mut self, headers: &Headers, payload: &[u8]) {
        let mut headers = *headers;
        headers.bth.pad_count = pad_len(payload.len()) as u8;
        let mut bytes = vec![0; headers.len()];
        headers
            .emit(&mut bytes)
            .expect("headers that fit their opcode");
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + pad_len(payload.len()) + ICRC_LEN, 0);
        self.receive(Duration::ZERO, &bytes);
    }

    /// Builds the next packet that the queue pair sends.
    pub(crate) fn next_packet(&mut self, now: Duration) -> Option<Vec<u8>> {
        loop {
            let bytes = self.build_packet(now);
            if bytes.is_some() || !self.change_memory() {
                self.drain();
                return bytes;
            }
        }
    }

    fn build_packet(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.sends_first {
            if let Some(send) = self.qp.poll_send_only(now, &self.memory) {
                return Some(assemble(
                    &send.headers(),
                    &send.payload,
                    self.base,
                    &self.ram,
                ));
            }
            let nothing = Payload::Inline(&[]);
            if let Some((dest_qp, answer, original)) = self.qp.poll_atomic_ack() {
                let compact = Compact {
                    atomic_ack: Some(answer),
                    ..Compact::to(dest_qp)
                };
                let headers = compact.atomic_ack_headers(&AtomicAckEthRepr { original })?;
                return Some(assemble(&headers, &nothing, self.base, &self.ram));
            }
            if let Some((dest_qp, atomic, operands)) =
                self.qp.poll_atomic_request(now, &self.memory)
            {
                let compact = Compact {
                    atomic: Some(atomic),
                    ..Compact::to(dest_qp)
                };
                let headers = compact.atomic_headers(&operands)?;
                return Some(assemble(&headers, &nothing, self.base, &self.ram));
            }
            if let Some((bth, aeth)) = self.qp.poll_acknowledgement() {
                let headers = Headers {
                    aeth: Some(aeth),
                    ..bth.into()
                };
                return Some(assemble(&headers, &nothing, self.base, &self.ram));
            }
        }
        let budget = MAX_HEADERS_LEN + 4096 + ICRC_LEN;
        let was_idle = self.qp.is_transmit_idle();
        let transmit = self.qp.poll_transmit(now, &self.memory, budget)?;
        assert!(!was_idle, "there was something to send");
        let bytes = assemble(&transmit.headers, &transmit.payload, self.base, &self.ram);
        assert_eq!(bytes.len(), transmit.udp_payload_len());
        Some(bytes)
    }

    /// Posts a send and builds its packet in one call, if the queue pair permits that.
    pub(crate) fn post_send_only(&mut self, now: Duration, wr: &SendWr<'_>) -> Option<Vec<u8>> {
        if !self.qp.may_post_send_only(wr) {
            return None;
        }
        let planned = self.qp.plan_send_only(&self.memory, wr)?;
        assert_eq!(planned.dest_qp, Self::qpn(1 - self.index()));
        let compact = Compact {
            send: Some(planned.send),
            ..Compact::to(planned.dest_qp)
        };
        let headers = compact.send_headers()?;
        let segments;
        let payload = match planned.bytes {
            PlannedBytes::Memory(segment) => {
                segments = [segment];
                Payload::Segments(&segments)
            }
            PlannedBytes::Inline(bytes) => Payload::Inline(bytes),
        };
        let bytes = assemble(&headers, &payload, self.base, &self.ram);
        self.qp.post_send_only(now, wr, &planned);
        self.drain();
        Some(bytes)
    }

    /// Takes completions and events.
    pub(crate) fn drain(&mut self) {
        while let Some(completion) = self.qp.poll_completion() {
            match completion.queue {
                Queue::Send => self.sends.push(completion.wc),
                Queue::Receive | Queue::Shared(_) => {
                    self.receives.push((completion.wc, completion.solicited))
                }
            }
        }
        while let Some(event) = self.qp.poll_async_event() {
            self.events.push(event);
        }
    }
}

/// The bytes of a packet, with an empty ICRC. `ram` is the memory at `base`.
fn assemble(headers: &Headers, payload: &Payload<'_>, base: u64, ram: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    headers
        .emit(&mut bytes)
        .expect("headers that fit their opcode");
    match payload {
        Payload::Inline(inline) => bytes.extend_from_slice(inline),
        Payload::Segments(segments) => {
            for segment in *segments {
                let start = (segment.addr - base) as usize;
                bytes.extend_from_slice(&ram[start..][..segment.len as usize]);
            }
        }
    }
    let pad = usize::from(headers.bth.pad_count);
    bytes.resize(bytes.len() + pad + ICRC_LEN, 0);
    bytes
}

/// `len` bytes that depend on `seed` and position.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| ((at.wrapping_mul(31) ^ (at >> 8)).wrapping_add(seed.wrapping_mul(101))) as u8)
        .collect()
}

/// The attributes with which a host connects to the other.
pub(crate) fn connect_attr(index: u32, options: &Options) -> QpAttr {
    QpAttr {
        path_mtu: options.mtu,
        rq_psn: Psn::new(options.psn),
        sq_psn: Psn::new(options.psn),
        dest_qpn: Host::qpn(1 - index),
        access: options.access,
        qkey: QKEY,
        max_rd_atomic: options.rd_atomic,
        max_dest_rd_atomic: options.rd_atomic,
        min_rnr_timer: options.min_rnr_timer,
        timeout: options.timeout,
        retry_cnt: options.retry_cnt,
        rnr_retry: options.rnr_retry,
        ..QpAttr::default()
    }
}

/// The attributes that each state requires besides STATE, transcribed independently from `ib_modify_qp_is_ok`.
pub(crate) fn required(qp_type: QpType, state: QpState) -> QpAttrMask {
    use QpAttrMask as M;
    match (qp_type, state) {
        (QpType::Ud, QpState::Init) => M::PKEY_INDEX | M::PORT | M::QKEY,
        (QpType::Uc | QpType::XrcSend, QpState::Rtr) => {
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN
        }
        (QpType::Uc | QpType::Ud, QpState::Rts) => M::SQ_PSN,
        (QpType::XrcRecv, QpState::Rts) => M::TIMEOUT | M::SQ_PSN,
        (QpType::Ud, _) => M::empty(),
        (_, state) => required_of_connected(state),
    }
}

fn required_of_connected(state: QpState) -> QpAttrMask {
    use QpAttrMask as M;
    match state {
        QpState::Init => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        QpState::Rtr => {
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
        }
        QpState::Rts => M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
        _ => M::empty(),
    }
}
