//! RDMA connections in Rust, on any Linux machine, with or without RDMA hardware.
//!
//! Two layers over one state machine:
//!
//! * the high one: [`Connector`], [`Listener`], [`Connection`]: buffers, deadlines, errors that
//!   explain themselves; blocking, and for tasks under the feature `tokio`; [`datagram`] has sockets
//!   for messages of one packet, to services and multicast groups;
//! * the low one, [`cm`]: event channels, ids and events with the semantics of `rdma_cm(7)`.
//!
//! The provider beneath is the software RoCEv2 device: user space, UDP port 4791, no root, no
//! kernel module, no daemon. [`provider`] chooses the kernel's RDMA devices instead.
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

mod address_turn;
pub mod cm;
pub mod connection;
pub mod datagram;
mod deadline;
pub mod device;
pub mod infiniband;
pub mod provider;
pub mod reach;
pub mod resolve;
pub mod software;
pub mod sys;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod work;

pub use connection::{Connection, Connector, Incoming, Listener, Options};
pub use device::devices;
pub use portolan_provider as seam;
pub use portolan_provider::verbs::Access;
pub use portolan_provider::{Cause, Error, Result, Step};
pub use portolan_sa as sa;
pub use portolan_wire as wire;
pub use resolve::resolve;
pub use sys::{Buffer, RemoteMemory, SharedMemory};
pub use work::{Done, Failed, Keepalive, Message, Transfer};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic in another thread does not spread, for every critical section leaves its state
/// whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
