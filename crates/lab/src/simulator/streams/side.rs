//! One side: the endpoint with its memory and queues.

use std::cell::RefCell;
use std::collections::VecDeque;

use portolan_rsocket::{
    CONTROL_BYTES, CONTROL_MESSAGES, Close, Config, Endpoint, Iomap, LocalMemory, Op, Payload,
    Post, Remote, Ring, Sge, Table, WhichBuffer, table_bytes,
};

use super::super::failure::{Violation, ensure, violation};

const TABLE: u64 = 0x1000_0000;
const BUFFER: u64 = 0x2000_0000;
/// The program's memory, which it maps for the peer.
const PROGRAM: u64 = 0x3000_0000;
const GROWN_BUFFER: u64 = 0x4000_0000;
const TABLE_KEY: u32 = 11;
const BUFFER_KEY: u32 = 22;
const PROGRAM_KEY: u32 = 33;
const GROWN_BUFFER_KEY: u32 = 44;

/// Maximum of regions that a program maps, each once.
pub(super) const REGIONS: usize = 4;
/// Bytes of each region.
pub(super) const REGION: usize = 1024;

/// Memory that the peer writes and the endpoint reads.
#[derive(Debug)]
struct TableMemory(RefCell<Vec<u8>>);

impl Table for TableMemory {
    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }

    fn store(&self, offset: usize, from: &[u8]) {
        self.0.borrow_mut()[offset..offset + from.len()].copy_from_slice(from);
    }
}

/// Posted work.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) op: Op,
    /// The bytes at the time of the post.
    pub(super) bytes: Vec<u8>,
    /// Offsets and lengths of the memory that the device reads. Empty for inline data.
    ranges: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Completion {
    Sent { id: u64, is_success: bool },
    Message(u32),
    Flushed,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) keepalives: u64,
    pub(super) direct_writes: u64,
    pub(super) not_ready: u64,
    pub(super) grown: u64,
    pub(super) flushed: u64,
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) endpoint: Endpoint,
    table: TableMemory,
    /// Both send buffers, and both receive buffers.
    sends: Vec<u8>,
    receives: Vec<u8>,
    /// For each byte of the receive buffers, whether it has arrived and was not read.
    unread: Vec<bool>,
    program: Vec<u8>,
    mapped: usize,
    pub(super) posted: VecDeque<Flight>,
    /// Delivered and not acknowledged.
    pub(super) delivered: VecDeque<Flight>,
    pub(super) completions: VecDeque<Completion>,
    pub(super) receives_posted: usize,
    is_established: bool,
    /// The queue pair is in the error state.
    pub(super) is_broken: bool,
    /// The connection manager's DISCONNECTED event is pending.
    pub(super) has_event: bool,
    pub(super) counts: Counts,
}

impl Side {
    pub(super) fn new(config: Config) -> Self {
        let memory = LocalMemory {
            table: TABLE,
            table_key: TABLE_KEY,
            buffer: BUFFER,
            buffer_key: BUFFER_KEY,
        };
        let endpoint = Endpoint::new(config, memory);
        let config = *endpoint.config();
        let control = u32::from(CONTROL_MESSAGES) * CONTROL_BYTES;
        let receives = config.receive_buffer + config.grown_receive_buffer;
        Self {
            table: TableMemory(RefCell::new(vec![0; table_bytes(config.iomaps)])),
            sends: vec![0; (config.send_buffer + control + config.grown_send_buffer) as usize],
            receives: vec![0; receives as usize],
            unread: vec![false; receives as usize],
            program: vec![0; REGIONS * REGION],
            mapped: 0,
            posted: VecDeque::new(),
            delivered: VecDeque::new(),
            completions: VecDeque::new(),
            receives_posted: config.receive_queue.into(),
            is_established: false,
            is_broken: false,
            has_event: false,
            counts: Counts::default(),
            endpoint,
        }
    }

    pub(super) fn establish(&mut self) -> Result<(), Violation> {
        self.is_established = true;
        self.settle()
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established
    }

    /// Number of posts whose completions were not polled.
    pub(super) fn posts_under_way(&self) -> usize {
        let sent = |completion: &&Completion| matches!(completion, Completion::Sent { .. });
        let completed = self.completions.iter().filter(sent).count();
        self.posted.len() + self.delivered.len() + completed
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.posted.is_empty()
            && self.delivered.is_empty()
            && self.completions.is_empty()
            && !self.has_event
    }

    /// Posts the endpoint's pending work.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        if !self.is_established {
            return Ok(());
        }
        while let Some((which, _)) = self.endpoint.wants_to_grow() {
            self.counts.grown += 1;
            match which {
                WhichBuffer::Send => self.endpoint.grow_send(),
                WhichBuffer::Receive => self.endpoint.grow_receive(GROWN_BUFFER, GROWN_BUFFER_KEY),
            }
        }
        while let Some(post) = self.endpoint.next_post() {
            self.post(post, &[])?;
        }
        Ok(())
    }

    pub(super) fn post(&mut self, post: Post, data: &[u8]) -> Result<(), Violation> {
        let phase = self.endpoint.phase();
        ensure!(
            phase != portolan_rsocket::Phase::Failed,
            "{post:?} is posted after the failure"
        );
        let inline = self.endpoint.config().inline as usize;
        let (bytes, ranges) = match post.payload {
            Payload::Empty => (Vec::new(), Vec::new()),
            Payload::InlineData(length) => {
                ensure!(
                    length as usize <= inline,
                    "{length} bytes inline, where {inline} fit"
                );
                (data[..length as usize].to_vec(), Vec::new())
            }
            Payload::Data(pieces) => {
                ensure!(
                    pieces.length() as usize == data.len(),
                    "{pieces:?} for {} bytes",
                    data.len()
                );
                let base = self.base_of(pieces.ring, WhichBuffer::Send);
                let ranges = pieces
                    .ranges()
                    .map(|(at, length)| (base + at as usize, length as usize));
                (data.to_vec(), ranges.collect())
            }
            Payload::Bytes {
                bytes,
                length,
                place,
            } => {
                let length = usize::from(length);
                ensure!(
                    place.is_some() || length <= inline,
                    "{length} bytes inline, where {inline} fit"
                );
                let range = place.map(|place| (place as usize, length));
                (
                    bytes[..length].to_vec(),
                    range.into_iter().collect::<Vec<_>>(),
                )
            }
        };
        let mut rest = &bytes[..];
        for (at, length) in &ranges {
            let (now, later) = rest.split_at(*length);
            self.sends[*at..at + length].copy_from_slice(now);
            rest = later;
        }
        if self.is_broken {
            self.completions.push_back(Completion::Sent {
                id: post.id,
                is_success: false,
            });
            return Ok(());
        }
        let (id, op) = (post.id, post.op);
        self.posted.push_back(Flight {
            id,
            op,
            bytes,
            ranges,
        });
        let (under_way, queue) = (self.posts_under_way(), self.endpoint.config().send_queue);
        ensure!(
            under_way <= queue.into(),
            "{under_way} posts in a send queue of {queue}"
        );
        Ok(())
    }

    /// Where a buffer begins in the memory of its direction.
    fn base_of(&self, ring: Ring, which: WhichBuffer) -> usize {
        let config = self.endpoint.config();
        let first = match which {
            WhichBuffer::Send => config.send_buffer + u32::from(CONTROL_MESSAGES) * CONTROL_BYTES,
            WhichBuffer::Receive => config.receive_buffer,
        };
        match ring {
            Ring::First => 0,
            Ring::Grown => first as usize,
        }
    }

    /// Checks that the memory of a post is unchanged: the device may read it until the acknowledgement.
    pub(super) fn check_memory(&self, flight: &Flight) -> Result<(), Violation> {
        let mut rest = &flight.bytes[..];
        for (at, length) in &flight.ranges {
            let (now, later) = rest.split_at(*length);
            ensure!(
                &self.sends[*at..at + length] == now,
                "the memory of {:?} was overwritten",
                flight.op
            );
            rest = later;
        }
        Ok(())
    }

    /// Executes a write of the peer.
    pub(super) fn written(&mut self, to: Remote, bytes: &[u8]) -> Result<(), Violation> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (base, size) = match to.key {
            TABLE_KEY => (TABLE, self.table.0.borrow().len()),
            BUFFER_KEY => (BUFFER, self.endpoint.config().receive_buffer as usize),
            GROWN_BUFFER_KEY => (
                GROWN_BUFFER,
                self.endpoint.config().grown_receive_buffer as usize,
            ),
            PROGRAM_KEY => (PROGRAM, self.mapped * REGION),
            key => {
                return Err(violation!(
                    "a write of {} bytes by key {key:#x}",
                    bytes.len()
                ));
            }
        };
        let start = to.addr.wrapping_sub(base) as usize;
        let end = start.saturating_add(bytes.len());
        ensure!(end <= size, "a write of bytes {start} to {end} of {size}");
        match to.key {
            TABLE_KEY => self.table.store(start, bytes),
            BUFFER_KEY | GROWN_BUFFER_KEY => {
                let ring = match to.key {
                    BUFFER_KEY => Ring::First,
                    _ => Ring::Grown,
                };
                let base = self.base_of(ring, WhichBuffer::Receive);
                let (start, end) = (base + start, base + end);
                let taken = self.unread[start..end].iter().position(|unread| *unread);
                ensure!(
                    taken.is_none(),
                    "unread data at {start} to {end} is overwritten"
                );
                self.unread[start..end].fill(true);
                self.receives[start..end].copy_from_slice(bytes);
            }
            _ => {
                let same_region = start / REGION == (end - 1) / REGION;
                ensure!(
                    same_region,
                    "a write of {start} to {end} passes the end of mapped memory"
                );
                let expected = (start..end).map(mapped_byte);
                ensure!(
                    expected.eq(bytes.iter().copied()),
                    "mapped memory has other bytes than were sent"
                );
                self.program[start..end].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Handles the oldest completion, or the DISCONNECTED event. Returns whether there was one.
    pub(super) fn look(&mut self) -> Result<bool, Violation> {
        let Some(completion) = self.completions.pop_front() else {
            // The event is handled after all completions.
            let had_event = std::mem::take(&mut self.has_event);
            if had_event {
                self.endpoint.fail();
            }
            return Ok(had_event);
        };
        match completion {
            Completion::Sent {
                id,
                is_success: true,
            } => self.endpoint.on_sent(id),
            Completion::Sent { id, .. } => {
                self.endpoint.on_lost(id);
                self.counts.flushed += 1;
                self.endpoint.fail();
            }
            Completion::Message(number) => {
                self.is_established = true;
                self.receives_posted += usize::from(!self.is_broken);
                let taken = self.endpoint.on_message(number, &self.table);
                taken.map_err(|error| violation!("an honest peer is refused: {error}"))?;
            }
            Completion::Flushed => self.counts.flushed += 1,
        }
        self.settle()?;
        Ok(true)
    }

    pub(super) fn keepalive(&mut self) -> Result<(), Violation> {
        if self.is_established
            && let Some(post) = self.endpoint.keepalive()
        {
            ensure!(
                post.payload == Payload::Empty,
                "a keepalive writes {:?}",
                post.payload
            );
            self.counts.keepalives += 1;
            self.post(post, &[])?;
        }
        Ok(())
    }

    pub(super) fn close(&mut self, which: Close) -> Result<(), Violation> {
        self.endpoint.close(which);
        self.settle()
    }

    /// Offers a region to the peer. Returns its offset.
    pub(super) fn map(&mut self) -> Result<Option<u64>, Violation> {
        if self.mapped == REGIONS {
            return Ok(None);
        }
        // A large offset. Its low bits are the place in the program's memory.
        let offset = (1 << 33) + (self.mapped * REGION) as u64;
        let memory = Sge {
            addr: PROGRAM + (self.mapped * REGION) as u64,
            key: PROGRAM_KEY,
            length: REGION as u32,
        };
        let entry = self.endpoint.offer(Iomap { offset, memory });
        self.mapped += usize::from(entry.is_some());
        self.settle()?;
        Ok(entry.map(|_| offset))
    }

    /// Writes to the peer's memory mapped at `offset`. Does nothing if nothing is mapped there or there is no room.
    pub(super) fn write_direct(&mut self, offset: u64, wanted: usize) -> Result<(), Violation> {
        if !self.is_established {
            return Ok(());
        }
        let next = self.endpoint.next_direct(wanted, offset, &self.table);
        if let Some(Some((length, post))) = next {
            let start = (offset % (1 << 33)) as usize;
            let bytes: Vec<u8> = (start..start + length as usize).map(mapped_byte).collect();
            self.counts.direct_writes += 1;
            self.post(post, &bytes)?;
            self.settle()?;
        }
        Ok(())
    }

    /// Reads at most `wanted` bytes.
    pub(super) fn read(&mut self, wanted: usize) -> Result<Vec<u8>, Violation> {
        let pieces = self.endpoint.peek(0, wanted);
        let base = self.base_of(pieces.ring, WhichBuffer::Receive);
        let mut bytes = Vec::new();
        for (at, length) in pieces.ranges() {
            let range = base + at as usize..base + (at + length) as usize;
            let all_there = self.unread[range.clone()].iter().all(|unread| *unread);
            ensure!(all_there, "{range:?} is read before it has arrived");
            self.unread[range.clone()].fill(false);
            bytes.extend_from_slice(&self.receives[range]);
        }
        self.endpoint.consume(pieces.length());
        self.settle()?;
        Ok(bytes)
    }
}

/// The byte that every writer writes at a place of mapped memory.
fn mapped_byte(place: usize) -> u8 {
    (place.wrapping_mul(0x9E37_79B9) >> 9) as u8
}
