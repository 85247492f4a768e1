//! The high-level API: connections with buffers and deadlines, without callbacks.
//!
//! [`Connector`] connects to a [`Listener`], which accepts or rejects [`Incoming`] requests. These
//! calls block; the feature `tokio` offers the same operations for async tasks.
//!
//! ```
//! use portolan::{Connector, Listener, Options};
//! use std::time::Duration;
//!
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let client = std::thread::spawn(move || {
//!     let connector = Connector::new().private_data(*b"a pilot").timeout(Duration::from_secs(5));
//!     connector.connect_to(address)
//! });
//! let incoming = listener.accept()?;
//! assert!(incoming.private_data().starts_with(b"a pilot"));
//! let options = Options::default().receive_size(1 << 16);
//! let connection = incoming.accept_with(&options)?;
//! drop(client.join().unwrap()?);
//! assert!(connection.receive().unwrap_err().is_disconnected());
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! # Progress
//!
//! A program that holds a connection and calls nothing is a good peer all the same:
//!
//! * The device serves the peer's reads, writes and atomics, and takes its messages into posted receives
//!   ([`Options::receive_depth`]). A device in user space has a thread for that.
//! * One thread of the process answers peers that disconnect. The peer's [`Connection::close`] returns, and messages
//!   that arrived before the end wait for the program.
//!
//! Completions, messages and keepalives are handled in the calls that wait for something or look for it: a
//! [`Keepalive`](crate::Keepalive) needs a caller.

mod background;
mod batch;
mod connector;
mod established;
mod inner;
mod listen_options;
mod listener;
mod memory;
mod options;
mod posting;
mod race;
mod readiness;
mod steps;
mod transport;
mod window;

pub use batch::{Batch, Unposted};
#[cfg(feature = "tokio")]
pub(crate) use connector::Connecting;
pub use connector::Connector;
pub(crate) use connector::require_port;
pub use established::Connection;
pub(crate) use inner::{Inner, ends_connection};
pub use listen_options::ListenOptions;
pub(crate) use listener::has_withdrawn;
pub use listener::{Incoming, Listener};
#[cfg(feature = "tokio")]
pub(crate) use listener::{accept_outcome, unconfirmed};
pub use options::Options;
pub use posting::Request;
pub(crate) use race::Race;
pub(crate) use race::no_address;
#[cfg(feature = "tokio")]
pub(crate) use race::{ATTEMPT_DELAY, Failures};
pub use readiness::Readiness;
pub(crate) use steps::{Attempt, Steps};
pub use transport::Transport;
pub use window::Window;
