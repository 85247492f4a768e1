//! A client of InfiniBand's subnet administrator.
//!
//! * [`client`]: questions of many callers, blocking and not, through one thread for each port; services that
//!   are kept registered.
//! * [`reach`]: whether a GID can be reached.
//! * [`engine`]: queries, retries, tables in many packets: a pure state machine.
//! * [`transport`]: the seam below: one port, one management class, datagrams out and in.
//! * [`port`]: what a port knows of itself: its LID, its subnet manager, its GIDs and partitions.
//! * [`scripted`]: a transport in memory, whose other end is the test's.
//! * [`umad`]: Linux's user MAD devices as a transport.

mod cache;
pub mod client;
mod desk;
#[forbid(unsafe_code)]
pub mod engine;
pub mod port;
mod rand;
pub mod reach;
pub mod scripted;
mod sys;
pub mod transport;
pub mod umad;

pub use cache::CacheConfig;
pub use client::{Client, ClientConfig};
pub use port::{LinkLayer, Port, PortState};
pub use transport::{Grh, MadAddress, Received, Transport, TransportError, Wake};
