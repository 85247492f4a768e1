//! Two endpoints and a reliable connection between them, whose parts move only when they are told.
//!
//! The connection keeps the order of posts, as RC does. Delivery, completions of sends, and the receiver's look at its
//! completions are separate steps, so that any of them may lag behind the others. A message that finds no receive stays
//! where it is and blocks what follows (receiver not ready).

use std::cell::RefCell;
use std::collections::VecDeque;

use portolan_rsocket::{
    CONTROL_BYTES, CONTROL_MESSAGES, Config, Endpoint, Iomap, LocalMemory, Op, Payload, Post,
    Remote, Ring, Signalling, Table, Violation, WhichBuffer, table_bytes,
};

const TABLE: u64 = 0x1000_0000;
const BUFFER: u64 = 0x2000_0000;
/// Memory of the program, which it may offer to the peer.
pub(crate) const PROGRAM: u64 = 0x3000_0000;
pub(crate) const PROGRAM_BYTES: usize = 8192;
const GROWN_BUFFER: u64 = 0x4000_0000;
const TABLE_KEY: u32 = 11;
const BUFFER_KEY: u32 = 22;
pub(crate) const PROGRAM_KEY: u32 = 33;
const GROWN_BUFFER_KEY: u32 = 44;

struct TableMemory(RefCell<Vec<u8>>);

impl Table for TableMemory {
    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }

    fn store(&self, offset: usize, from: &[u8]) {
        self.0.borrow_mut()[offset..offset + from.len()].copy_from_slice(from);
    }
}

/// What is on its way to the peer.
struct Flight {
    id: u64,
    op: Op,
    /// Where the bytes are, read when they are delivered, as a device reads them.
    bytes: Bytes,
}

enum Bytes {
    Own(Vec<u8>),
    Ring(Vec<(usize, usize)>),
}

/// One side.
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    table: TableMemory,
    /// Both send buffers, and both receive buffers.
    send_memory: Vec<u8>,
    receive_memory: Vec<u8>,
    /// Whether there is memory for larger buffers.
    pub(crate) has_memory: bool,
    pub(crate) program: Vec<u8>,
    flights: VecDeque<Flight>,
    /// Sends that the peer has acknowledged and whose completions were not looked at.
    acknowledged: VecDeque<u64>,
    /// Messages whose completions were not looked at.
    received: VecDeque<u32>,
    posted_receives: usize,
    /// Posted sends without completion.
    pub(crate) under_way: usize,
}

impl Side {
    fn new(config: Config) -> Self {
        let memory = LocalMemory {
            table: TABLE,
            table_key: TABLE_KEY,
            buffer: BUFFER,
            buffer_key: BUFFER_KEY,
        };
        let endpoint = Endpoint::new(config, memory);
        let config = *endpoint.config();
        let control = u32::from(CONTROL_MESSAGES) * CONTROL_BYTES;
        Self {
            table: TableMemory(RefCell::new(vec![0; table_bytes(config.iomaps)])),
            send_memory: vec![
                0;
                (config.send_buffer + control + config.grown_send_buffer) as usize
            ],
            receive_memory: vec![0; (config.receive_buffer + config.grown_receive_buffer) as usize],
            has_memory: true,
            program: vec![0; PROGRAM_BYTES],
            flights: VecDeque::new(),
            acknowledged: VecDeque::new(),
            received: VecDeque::new(),
            posted_receives: config.receive_queue.into(),
            under_way: 0,
            endpoint,
        }
    }

    /// Writes as much of `bytes` as the endpoint takes.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> usize {
        let mut written = 0;
        while let Some((length, post)) = self.endpoint.next_write(bytes.len()) {
            let (now, later) = bytes.split_at(length as usize);
            self.post(post, now);
            self.settle();
            written += now.len();
            bytes = later;
        }
        written
    }

    /// Writes to what the peer has mapped; `None` if nothing is mapped there.
    pub(crate) fn write_direct(&mut self, bytes: &[u8], offset: u64) -> Option<usize> {
        let mut written = 0;
        while written < bytes.len() {
            let left = &bytes[written..];
            let next = self
                .endpoint
                .next_direct(left.len(), offset + written as u64, &self.table);
            let Some(found) = next else { break };
            let (length, post) = found?;
            self.post(post, &left[..length as usize]);
            self.settle();
            written += length as usize;
        }
        Some(written)
    }

    pub(crate) fn read(&mut self, wanted: usize) -> Vec<u8> {
        let pieces = self.endpoint.peek(0, wanted);
        let base = match pieces.ring {
            Ring::First => 0,
            Ring::Grown => self.endpoint.config().receive_buffer,
        };
        let ranges = pieces
            .ranges()
            .map(|(at, length)| (base + at) as usize..(base + at + length) as usize);
        let bytes = ranges
            .flat_map(|range| self.receive_memory[range].to_vec())
            .collect();
        self.endpoint.consume(pieces.length());
        self.settle();
        bytes
    }

    /// Posts what the endpoint wants posted.
    pub(crate) fn settle(&mut self) {
        while let Some((which, _)) = self.endpoint.wants_to_grow() {
            match which {
                _ if !self.has_memory => self.endpoint.stay(which),
                WhichBuffer::Send => self.endpoint.grow_send(),
                WhichBuffer::Receive => self.endpoint.grow_receive(GROWN_BUFFER, GROWN_BUFFER_KEY),
            }
        }
        while let Some(post) = self.endpoint.next_post() {
            self.post(post, &[]);
        }
    }

    pub(crate) fn post(&mut self, post: Post, data: &[u8]) {
        assert_eq!(post.id >> 63, 0, "the highest bit is the owner's");
        let bytes = match post.payload {
            Payload::Empty => Bytes::Own(Vec::new()),
            Payload::InlineData(length) => {
                assert!(length <= self.endpoint.config().inline);
                Bytes::Own(data[..length as usize].to_vec())
            }
            Payload::Data(pieces) => {
                let mut rest = data;
                let first = self.endpoint.config().send_buffer
                    + u32::from(CONTROL_MESSAGES) * CONTROL_BYTES;
                let base = match pieces.ring {
                    Ring::First => 0,
                    Ring::Grown => first as usize,
                };
                let ranges: Vec<_> = pieces
                    .ranges()
                    .map(|(at, length)| (base + at as usize, length as usize))
                    .collect();
                for (at, length) in &ranges {
                    let (now, later) = rest.split_at(*length);
                    self.send_memory[*at..at + length].copy_from_slice(now);
                    rest = later;
                }
                Bytes::Ring(ranges)
            }
            Payload::Bytes {
                bytes,
                length,
                place: None,
            } => {
                assert!(u32::from(length) <= self.endpoint.config().inline);
                Bytes::Own(bytes[..length.into()].to_vec())
            }
            Payload::Bytes {
                bytes,
                length,
                place: Some(place),
            } => {
                let (at, length) = (place as usize, usize::from(length));
                self.send_memory[at..at + length].copy_from_slice(&bytes[..length]);
                Bytes::Ring(vec![(at, length)])
            }
        };
        self.under_way += 1;
        let limit = usize::from(self.endpoint.config().send_queue);
        assert!(self.under_way <= limit, "the send queue overflows");
        self.flights.push_back(Flight {
            id: post.id,
            op: post.op,
            bytes,
        });
    }

    fn memory_of(&self, bytes: &Bytes) -> Vec<u8> {
        match bytes {
            Bytes::Own(bytes) => bytes.clone(),
            Bytes::Ring(ranges) => {
                let parts = ranges
                    .iter()
                    .map(|(at, length)| &self.send_memory[*at..at + length]);
                parts.flatten().copied().collect()
            }
        }
    }

    fn written(&mut self, to: Remote, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let place = |base: u64| (to.addr - base) as usize;
        match to.key {
            TABLE_KEY => self.table.store(place(TABLE), bytes),
            BUFFER_KEY => {
                self.receive_memory[place(BUFFER)..][..bytes.len()].copy_from_slice(bytes)
            }
            GROWN_BUFFER_KEY => {
                let first = self.endpoint.config().receive_buffer as usize;
                self.receive_memory[first..][place(GROWN_BUFFER)..][..bytes.len()]
                    .copy_from_slice(bytes)
            }
            PROGRAM_KEY => self.program[place(PROGRAM)..][..bytes.len()].copy_from_slice(bytes),
            key => panic!("nothing has key {key}"),
        }
    }

    /// Looks at one completion of a send.
    pub(crate) fn reap_send(&mut self) -> bool {
        let Some(id) = self.acknowledged.pop_front() else {
            return false;
        };
        self.under_way -= 1;
        self.endpoint.on_sent(id);
        self.settle();
        true
    }

    /// The connection breaks: all posts fail that the peer has not acknowledged.
    pub(crate) fn lose(&mut self) {
        while self.reap_send() {}
        for flight in self.flights.drain(..) {
            self.under_way -= 1;
            self.endpoint.on_lost(flight.id);
            self.endpoint.fail();
        }
        self.settle();
    }

    /// Looks at one completion of a receive, and posts the receive again.
    pub(crate) fn reap_receive(&mut self) -> Result<bool, Violation> {
        let Some(message) = self.received.pop_front() else {
            return Ok(false);
        };
        self.posted_receives += 1;
        self.endpoint.on_message(message, &self.table)?;
        self.settle();
        Ok(true)
    }

    /// A message that the peer's endpoint would not have sent.
    pub(crate) fn inject(&mut self, message: u32) -> Result<(), Violation> {
        let taken = self.endpoint.on_message(message, &self.table).map(drop);
        self.settle();
        taken
    }

    pub(crate) fn offer(&mut self, offset: u64, start: usize, length: u32) -> Option<u16> {
        let memory = portolan_rsocket::Sge {
            addr: PROGRAM + start as u64,
            key: PROGRAM_KEY,
            length,
        };
        let index = self.endpoint.offer(Iomap { offset, memory });
        self.settle();
        index
    }
}

/// Delivers the oldest post of `from`; whether it could.
pub(crate) fn deliver(from: &mut Side, to: &mut Side) -> bool {
    let Some(flight) = from.flights.front() else {
        return false;
    };
    let bytes = from.memory_of(&flight.bytes);
    let message = match flight.op {
        Op::Write(_) => None,
        Op::WriteWithImmediate(_, number) => Some(number),
        Op::Send => Some(u32::from_le_bytes(bytes[..].try_into().unwrap())),
    };
    if message.is_some() && to.posted_receives == 0 {
        return false;
    }
    if let Op::Write(remote) | Op::WriteWithImmediate(remote, _) = flight.op {
        to.written(remote, &bytes);
    }
    if let Some(message) = message {
        to.posted_receives -= 1;
        to.received.push_back(message);
    }
    from.acknowledged.push_back(flight.id);
    from.flights.pop_front();
    true
}

/// Two connected sides.
pub(crate) fn connected(configs: [Config; 2]) -> [Side; 2] {
    let [mut a, mut b] = configs.map(Side::new);
    let (of_a, of_b) = (a.endpoint.conn_data(), b.endpoint.conn_data());
    // As the private data carries them.
    a.endpoint
        .connected(portolan_rsocket::ConnData::decode(&of_b.encode()).unwrap());
    b.endpoint
        .connected(portolan_rsocket::ConnData::decode(&of_a.encode()).unwrap());
    a.settle();
    b.settle();
    [a, b]
}

/// Runs everything that is under way to its end.
pub(crate) fn quiesce([a, b]: &mut [Side; 2]) -> Result<(), Violation> {
    loop {
        let mut moved = deliver(a, b) | deliver(b, a);
        for side in [&mut *a, &mut *b] {
            moved |= side.reap_send();
            moved |= side.reap_receive()?;
        }
        if !moved {
            return Ok(());
        }
    }
}

pub(crate) fn small(signalling: Signalling, inline: u32) -> Config {
    Config {
        send_buffer: 4096,
        receive_buffer: 1000,
        send_queue: 16,
        receive_queue: 16,
        inline,
        iomaps: 4,
        signalling,
        big_endian: false,
        ..Config::default()
    }
}
