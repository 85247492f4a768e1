//! RDMA connections in Rust, on any Linux machine, with or without RDMA hardware.
//!
//! ```no_run
//! use portolan::Connector;
//!
//! let connection = Connector::new().connect("localhost:7471")?;
//! let greeting = connection.buffer_from(b"ahoy")?;
//! connection.send(greeting)?.wait()?;
//! println!("{:?}", &connection.receive()?[..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Without RDMA hardware, connections use the software device: RoCEv2 in user space over UDP port 4791. It needs no root,
//! no kernel module and no daemon.
//!
//! # What most programs need
//!
//! * [`Listener`] and [`Connector`] make a [`Connection`], which sends and receives messages and reads and writes remote
//!   memory. Each call takes a deadline from [`Options`].
//! * [`Buffer`] and [`SharedMemory`] are memory that a device may touch. A peer reaches a [`SharedMemory`] by its
//!   [`RemoteMemory`].
//! * [`Stream`] and [`StreamListener`] are byte streams, used as `TcpStream` and `TcpListener` are.
//! * [`datagram`] has sockets for messages of one packet, to services and to multicast groups.
//! * [`resolve()`] finds addresses, sources, routes and devices, as `rdma_getaddrinfo(3)` does.
//! * [`devices`](devices()) lists the RDMA devices.
//! * `tokio` (the feature of that name) has the awaitable forms.
//!
//! # For experts
//!
//! * [`cm`]: event channels, ids and events with the semantics of `rdma_cm(7)`.
//! * [`provider`]: which provider serves, and the types and traits of providers, verbs included.
//! * [`software`]: the software device's settings, counters and survey of the processes that share the port.
//! * [`infiniband`]: connections between InfiniBand ports over management datagrams.
//! * [`reach`]: whether a GID can be reached, as `ibv_gid_reachable(3)`.
//! * [`sa`] and [`wire`]: the subnet administrator's client, and the formats of packets.

mod address_turn;
pub mod cm;
pub mod connection;
pub mod datagram;
mod deadline;
pub mod device;
mod domain;
pub mod infiniband;
pub mod provider;
pub mod reach;
mod ready_set;
pub mod resolve;
pub mod software;
pub mod stream;
mod sys;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod work;

pub use connection::{Connection, Connector, Incoming, Listener, Options, Readiness, Request};
pub use device::devices;
pub use domain::Domain;
pub use portolan_provider::verbs::Access;
pub use portolan_provider::{Cause, Error, Result, Step};
pub use portolan_sa as sa;
pub use portolan_wire as wire;
pub use resolve::resolve;
pub use sys::{BUFFER_MAX_BYTES, Buffer, Memory, RemoteMemory, SharedMemory};
pub use work::{Done, Failed, Gather, Keepalive, Message, Transfer};
