//! The rsocket protocol: byte streams over RDMA's reliable connections, compatible with librdmacm's `rsocket(7)`.
//!
//! An [`Endpoint`] is one side of a stream. It performs no I/O: it returns the work to post ([`Post`]), and handles
//! completions. The caller owns the memory and the queue pair.
//!
//! # Protocol
//!
//! Each side has a receive buffer and a small *target table*, which the peer writes by RDMA.
//!
//! * The private data of the connection request and reply ([`ConnData`]) contain the table, the first half of the
//!   buffer, and how many messages the peer may send (credits).
//! * Data is written to the peer's buffer. The immediate data carries the number of bytes ([`Message`]).
//! * When half of a buffer has been read, its owner writes the location of that half to the next entry of the peer's
//!   table, with immediate data that raises the peer's credits.
//! * A side may replace its receive buffer by a larger one: its next entries then describe that one
//!   ([`Endpoint::wants_to_grow`]).
//! * Control messages end one or both directions. They need no credits: the receiver-not-ready flow control of the
//!   queue pair delays them.
//! * A side may offer memory of its program by writing to the peer's iomap, which follows the table. The peer then
//!   writes to this memory directly.
//! * iWARP has no writes with immediate data, so a message of four bytes follows each write ([`Signalling::Sends`]).
//!
//! Datagram sockets use a different protocol ([`datagram`]).
//!
//! Source: rdma-core's `librdmacm/docs/rsocket` for the format, and its implementation for what that omits.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod buffers;
mod config;
mod conn_data;
pub mod datagram;
mod endpoint;
mod error;
mod growth;
mod iomap;
mod message;
pub mod mutant;
mod phase;
mod post;
mod receiver;
mod sender;
mod sge;
mod table;
mod under_way;

pub use buffers::WhichBuffer;
pub use config::{
    BUFFER_MAX_BYTES, CONTROL_BYTES, CONTROL_MESSAGES, Config, LocalMemory, QUEUE_MAX, QUEUE_MIN,
    SEND_LOW_WATER, Signalling, TRANSFER_MAX_BYTES,
};
pub use conn_data::ConnData;
pub use endpoint::Endpoint;
pub use error::Violation;
pub use iomap::{IOMAPS_MAX, Iomap, scale, unscale};
pub use message::{Control, Message};
pub use phase::{Arrival, Close, Phase};
pub use post::{Op, Payload, Pieces, Post, Remote, Ring};
pub use sge::Sge;
pub use table::{Table, table_bytes};
