//! What the engine asks its host to do.

use core::ops::Range;

use portolan_provider::verbs::{Srqn, WorkCompletion};
use portolan_wire::rocev2::Headers;

use super::Path;

/// One packet to build and send.
///
/// The host writes `headers`, gathers `payload`, adds `headers.bth.pad_count` zero bytes and
/// appends the ICRC. It borrows from the queue pair, so it is built before anything else happens
/// there.
#[derive(Debug)]
pub struct Transmit<'a> {
    /// BTH and extension headers, complete; the pad count is that of `payload`.
    pub headers: Headers,
    /// The bytes that follow the headers.
    pub payload: Payload<'a>,
    /// Where it goes: a datagram's own way; `None` for the connection's.
    pub path: Option<Path>,
}

impl Transmit<'_> {
    /// Bytes of the UDP payload: headers, payload, padding and ICRC.
    pub fn udp_payload_len(&self) -> usize {
        self.headers.len()
            + self.payload.len()
            + usize::from(self.headers.bth.pad_count)
            + portolan_wire::rocev2::ICRC_LEN
    }
}

/// Where the payload of a packet comes from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, checked against the memory table in the call that returned it. Empty for
    /// packets without payload.
    Segments(&'a [Segment]),
    /// Bytes copied when the work request was posted.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Bytes, without padding; at most the path MTU.
    pub fn len(&self) -> usize {
        match self {
            Self::Segments(segments) => segments.iter().map(|s| s.len as usize).sum(),
            Self::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A contiguous piece of the application's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte, as an address of this process.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Received bytes to copy into the application's memory, once, the last byte last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First byte of the destination, as an address of this process.
    pub addr: u64,
    /// What the bytes are a part of.
    pub source: PlacementSource,
    /// The bytes, as a range of the source.
    pub source_range: Range<usize>,
}

impl Placement {
    /// The bytes to copy; `payload` is that of the packet just handled. `None` only if it is another
    /// packet's.
    pub fn bytes<'a>(&'a self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let source = match &self.source {
            PlacementSource::Payload => payload,
            PlacementSource::Value(bytes) => bytes,
        };
        source.get(self.source_range.clone())
    }
}

/// What a placement's bytes are a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementSource {
    /// The payload of the packet just handled.
    Payload,
    /// The result of an atomic operation, in this machine's byte order.
    Value([u8; 8]),
}

/// An atomic operation of the peer on eight bytes of the application's memory.
///
/// The host carries it out as one indivisible instruction of its processor and answers with the
/// value that was there before ([`QueuePair::complete_atomic`](super::QueuePair::complete_atomic)).
/// So it is atomic towards every other queue pair and towards the program itself
/// (`IBV_ATOMIC_GLOB` of ibv_query_device(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicOperation {
    /// The first byte, as an address of this process; a multiple of eight.
    pub addr: u64,
    /// What to do with the value there, which is in this machine's byte order.
    pub kind: AtomicKind,
}

/// What an atomic operation does (IBTA 9.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Stores `swap` if the value is `compare`.
    CompareSwap {
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd {
        /// Summand.
        add: u64,
    },
}

impl AtomicKind {
    /// The value after the operation on `original`: what a host whose memory is its own computes.
    pub fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if original == compare => swap,
            Self::CompareSwap { .. } => original,
            Self::FetchAdd { add } => original.wrapping_add(add),
        }
    }
}

/// Which queue a completion is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    #[default]
    Receive,
    /// An XRC shared receive queue, which has a completion queue of its own.
    Shared(Srqn),
}

/// A finished work request, for the completion queue of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose completion queue it goes to.
    pub queue: Queue,
    /// The completion.
    pub wc: WorkCompletion,
    /// Whether the peer asked for an event (the solicited event bit of IBTA 9.2; only receives).
    pub solicited: bool,
}
