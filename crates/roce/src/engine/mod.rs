//! The queue pair engine: connections, datagrams, completion queues and memory protection, without I/O.
//!
//! The engine does not read a clock, open a socket, start a thread or touch application memory. A host passes in work
//! requests, packets and the time, and executes the outputs:
//!
//! ```text
//!  post_send, post_recv, modify ──▶ ┌───────────┐ ──▶ poll_transmit     packets to build and send
//!  handle_packet ─────────────────▶ │ QueuePair │ ──▶ poll_placement    bytes to copy to memory
//!  handle_timeout ────────────────▶ │           │ ──▶ poll_completion   for the completion queues
//!                                   │           │ ──▶ poll_async_event  for the owner
//!  complete_atomic ───────────────▶ │           │ ──▶ poll_atomic       to carry out on memory
//!  complete_memory_operation ─────▶ └───────────┘ ──▶ poll_memory_operation   on the table
//!                                         └───────▶ poll_timeout        when to call again
//! ```
//!
//! # The drain rule
//!
//! After every call on the left side, the host drains the right side, first placements and then completions, because a
//! completion promises that the bytes are in memory. [`QueuePair::poll_transmit`] may itself cause completions (if a
//! key turns out invalid when a packet is built), so the host drains completions and events after it, too. Placements
//! refer to the packet just handled and must be executed before the next one. The same holds for the atomic operation
//! that the packet may request; its result must be returned at once. Handling a packet, and polling for the next one to
//! send, may request a change of the memory table. The host applies it before any other call on the queue pair, and
//! then polls again for the packet. Finally the host sleeps until [`QueuePair::poll_timeout`].
//!
//! # Time
//!
//! `now` is a [`Duration`](core::time::Duration) since an epoch that the host chooses. The epoch is the same for all
//! calls on one queue pair, and the time never goes backwards.
//!
//! # Memory
//!
//! Keys, ranges and rights are checked against the [`MemoryTable`] for every packet, in both directions. The host holds
//! a read lock on the table from the call that checks until the copy is done, so that a removed region is not touched.

mod compact;
mod compact_words;
mod completion;
mod config;
mod counters;
mod fifo;
mod memory;
#[doc(hidden)]
pub mod mutant;
mod nanos;
mod output;
mod path;
mod qp;
mod shared_receive_queue;

pub use compact::{
    Compact, CompactAck, CompactAtomic, CompactAtomicAck, CompactSend, CompactWrite,
};
pub use compact_words::CompactWords;
pub use completion::{CompletionQueue, CqOverflow};
pub use config::{FlowConfig, QpConfig, QpLimits};
pub use counters::{DropReason, QpCounters};
pub use memory::{
    LocalAccessError, MemoryOperation, MemoryTable, PdId, Region, RemoteAccessError, WindowChange,
    WindowError,
};
pub(crate) use nanos::as_nanos;
pub use output::{
    AtomicKind, AtomicOperation, Completion, Direct, DirectOperation, Payload, Placement,
    PlacementSource, PlannedBytes, PlannedDirect, PlannedSend, Queue, Segment, SendOnly, Transmit,
};
pub use path::{Destination, Path};
pub use qp::{Ahead, Completions, QueuePair, ReceiveDomain, ReceiveEntry, ReceiveSource};
pub use shared_receive_queue::SharedReceiveQueue;
