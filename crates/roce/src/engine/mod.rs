//! The queue pair engine: connections, datagrams, completion queues and memory protection, without any
//! I/O.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or touches application memory. A
//! host feeds in work requests, packets and the time, and carries out the outputs:
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
//! After every call of the left side the host drains the right side, placements first and
//! completions after them: a completion says that the bytes are there. [`QueuePair::poll_transmit`]
//! may itself produce completions (a key found invalid as a packet is built), so completions and
//! events are drained after it, too. Placements refer to the packet just handled and are carried
//! out before the next one; so is the atomic operation that the packet may ask for, whose result is
//! handed back at once. Handling a packet, and asking for the next one to send, may ask for a change
//! of the memory table: it is applied before anything else is done with the queue pair, and what was
//! to be sent is asked for again. Then the host sleeps until [`QueuePair::poll_timeout`].
//!
//! # Time
//!
//! `now` is a [`Duration`](core::time::Duration) since an epoch of the host's choosing, the same
//! for all calls on one queue pair, and never goes back.
//!
//! # Memory
//!
//! Keys, ranges and rights are checked against the [`MemoryTable`] on every packet, in and out. The
//! host holds the table (a read lock) from the call that checked until the copy is done, so that a
//! region removed from the table is no longer touched.

mod completion;
mod config;
mod counters;
mod memory;
#[doc(hidden)]
pub mod mutant;
mod output;
mod path;
mod qp;
mod shared_receive_queue;

pub use completion::{CompletionQueue, CqOverflow};
pub use config::{FlowConfig, QpConfig, QpLimits};
pub use counters::{DropReason, QpCounters};
pub use memory::{
    LocalAccessError, MemoryOperation, MemoryTable, PdId, Region, RemoteAccessError, WindowChange,
    WindowError,
};
pub use output::{
    AtomicKind, AtomicOperation, Completion, Payload, Placement, PlacementSource, Queue, Segment,
    Transmit,
};
pub use path::{Destination, Path};
pub use qp::{QueuePair, ReceiveDomain, ReceiveEntry, ReceiveSource};
pub use shared_receive_queue::SharedReceiveQueue;
