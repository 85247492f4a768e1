//! Outputs of the engine for its host.

use core::ops::Range;

use portolan_provider::verbs::{Sge, Srqn, WorkCompletion};
use portolan_wire::Qpn;
use portolan_wire::bth::BthRepr;
use portolan_wire::eth::ImmDtRepr;
use portolan_wire::rocev2::Headers;

use super::{CompactSend, Path};

/// One packet to build and send.
///
/// The host writes `headers`, gathers `payload`, adds `headers.bth.pad_count` zero bytes and appends the ICRC. This
/// borrows from the queue pair, so the packet must be built before any other call.
#[derive(Debug)]
pub struct Transmit<'a> {
    /// BTH and extension headers, complete, including the pad count for `payload`.
    pub headers: Headers,
    /// The bytes that follow the headers.
    pub payload: Payload<'a>,
    /// Destination of a datagram; `None` for the connection's peer.
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

/// A packet that contains a whole send. The host builds it like a [`Transmit`]. See
/// [`QueuePair::poll_send_only`](super::QueuePair::poll_send_only).
#[derive(Clone, Copy, Debug)]
pub struct SendOnly<'a> {
    /// The base header, complete.
    pub bth: BthRepr,
    /// The only other header, if the opcode has it.
    pub immediate: Option<ImmDtRepr>,
    /// The bytes that follow the headers.
    pub payload: Payload<'a>,
}

impl SendOnly<'_> {
    /// All its headers.
    pub fn headers(&self) -> Headers {
        Headers {
            immdt: self.immediate,
            ..self.bth.into()
        }
    }
}

/// A send that [`QueuePair::plan_send_only`](super::QueuePair::plan_send_only) permits to send at once.
#[derive(Clone, Copy, Debug)]
pub struct PlannedSend<'a> {
    /// The queue pair that it is for.
    pub dest_qp: Qpn,
    /// Its packet.
    pub send: CompactSend,
    /// The packet's payload.
    pub bytes: PlannedBytes<'a>,
    /// The request's only element; `None` for inline data.
    pub(super) sge: Option<Sge>,
}

impl PlannedSend<'_> {
    /// Whether the payload is inline data.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.sge.is_none()
    }
}

/// The payload of a [`PlannedSend`], with its whole length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedBytes<'a> {
    /// Registered memory, checked against the memory table in the call that returned it.
    Memory(Segment),
    /// The bytes of the work request.
    Inline(&'a [u8]),
}

/// The source of a packet's payload.
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

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A one-sided request that the host may execute itself, if it has the peer's memory and the peer's table permits the
/// request. See [`QueuePair::poll_direct`](super::QueuePair::poll_direct).
#[derive(Clone, Copy, Debug)]
pub struct Direct<'a> {
    /// What to do.
    pub operation: DirectOperation,
    /// Address of the first byte, as the peer has told it.
    pub addr: u64,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// Bytes, at least one; eight of an atomic.
    pub len: u32,
    /// This side's memory: what is written, or where what was there before goes to.
    pub local: Payload<'a>,
}

/// A one-sided request of one element that [`QueuePair::plan_direct`](super::QueuePair::plan_direct) permits to execute at
/// once.
#[derive(Clone, Copy, Debug)]
pub struct PlannedDirect {
    /// What to do.
    pub operation: DirectOperation,
    /// Address of the first byte, as the peer has told it.
    pub addr: u64,
    /// Key of the peer's memory.
    pub rkey: u32,
    /// This side's memory, which is not empty.
    pub local: Segment,
}

/// What a one-sided request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOperation {
    /// Copies to the peer's memory.
    Write,
    /// Copies from the peer's memory.
    Read,
    /// Changes eight bytes of the peer's memory by one instruction of the processor.
    Atomic(AtomicKind),
}

/// A contiguous range of the application's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte, as an address of this process.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Received bytes to copy once into the application's memory, the last byte last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First byte of the destination, as an address of this process.
    pub addr: u64,
    /// The source of the bytes.
    pub source: PlacementSource,
    /// The bytes, as a range of the source.
    pub source_range: Range<usize>,
}

impl Placement {
    /// The bytes to copy. `payload` is that of the packet just handled; `None` means that it is another packet's.
    pub fn bytes<'a>(&'a self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let source = match &self.source {
            PlacementSource::Payload => payload,
            PlacementSource::Value(bytes) => bytes,
        };
        source.get(self.source_range.clone())
    }
}

/// The source of a placement's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementSource {
    /// The payload of the packet just handled.
    Payload,
    /// The result of an atomic operation, in host byte order.
    Value([u8; 8]),
}

/// An atomic operation of the peer on eight bytes of the application's memory.
///
/// The host executes it as one atomic instruction of its processor, and returns the previous value
/// ([`QueuePair::complete_atomic`](super::QueuePair::complete_atomic)). So it is atomic with respect to all other queue
/// pairs and the program itself (`IBV_ATOMIC_GLOB` of ibv_query_device(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicOperation {
    /// The first byte, as an address of this process; a multiple of eight.
    pub addr: u64,
    /// The operation on the value, which is in host byte order.
    pub kind: AtomicKind,
}

/// The type of an atomic operation (IBTA 9.4.5).
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
    /// The value after the operation on `original`, for a host with exclusive access to the memory.
    pub fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if original == compare => swap,
            Self::CompareSwap { .. } => original,
            Self::FetchAdd { add } => original.wrapping_add(add),
        }
    }
}

/// The queue of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    #[default]
    Receive,
    /// An XRC shared receive queue, which has its own completion queue.
    Shared(Srqn),
}

/// A completed work request, for the completion queue of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The queue whose completion queue gets it.
    pub queue: Queue,
    /// The completion.
    pub wc: WorkCompletion,
    /// Whether the peer requested an event (the solicited event bit of IBTA 9.2; only receives).
    pub solicited: bool,
}
