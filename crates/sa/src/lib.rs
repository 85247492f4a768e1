//! A client of InfiniBand's subnet administrator.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use portolan_sa::{Client, ClientConfig, umad};
//! use portolan_wire::sa::{NodeRecord, Query};
//!
//! let device = umad::devices()?.into_iter().next().ok_or("no InfiniBand port")?;
//! let client = Client::of_device(ClientConfig::default(), device);
//! for node in client.nodes(&Query::<NodeRecord>::new(), Duration::from_secs(10))? {
//!     println!("{node}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`client`]: queries of many callers, blocking and async, through one thread for each port;
//!   service registrations that stay renewed.
//! * [`reach`]: whether a GID is reachable.
//! * [`engine`]: queries, retries and multi-packet tables, as a pure state machine.
//! * [`transport`]: carries datagrams of one management class through one port.
//! * [`port`]: a port's attributes: its LID, its subnet manager, its GIDs and partitions.
//! * [`umad`]: Linux's user MAD devices as a transport.

mod cache;
pub mod client;
#[forbid(unsafe_code)]
pub mod engine;
pub mod port;
mod query_coalescer;
mod rand;
pub mod reach;
mod sys;
pub mod transport;
pub mod umad;

pub use cache::CacheConfig;
pub use client::{Client, ClientConfig};
pub use port::{LinkLayer, Port, PortState};
pub use transport::{Grh, MadAddress, Received, Transport, TransportError, Wake};
