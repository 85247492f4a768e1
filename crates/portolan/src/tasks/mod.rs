//! The library for tokio tasks: the same operations as futures.
//!
//! ```
//! use portolan::tasks::AsyncListener;
//! use portolan::{Connector, Options};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let listener = AsyncListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?.to_string();
//! let client = tokio::spawn(async move {
//!     let connection = Connector::new().connect_async(&address).await?;
//!     let greeting = connection.get_ref().buffer_from(b"ahoy")?;
//!     connection.send(greeting)?.await?;
//!     Ok::<_, portolan::Error>(connection)
//! });
//! let connection = listener.accept().await?.accept_async(&Options::default()).await?;
//! assert_eq!(&connection.receive().await?[..], b"ahoy");
//! # client.await.unwrap()?;
//! # Ok::<(), portolan::Error>(())
//! # }).unwrap();
//! ```
//!
//! # Cancellation
//!
//! Every future here may be dropped at any await point.
//!
//! * Posting happens in the call ([`AsyncConnection::send`]), not in the future that it returns. That future,
//!   [`Posted`], only waits: poll it by `&mut` under a timeout or in a `select!`, and wait for it again afterwards.
//! * A [`Posted`] that is dropped leaves its work posted. The connection keeps the buffer and the outcome for
//!   [`Connection::take_abandoned`](crate::Connection::take_abandoned).
//! * [`AsyncConnection::receive`], [`AsyncListener::accept`], [`AsyncEventChannel::next`] and
//!   [`AsyncSocket::receive`] take something only when they return it.
//! * Dropping a connect or accept abandons it and informs the peer.
//!
//! # Runtimes
//!
//! The runtime needs I/O and time enabled. Without them, or outside of a runtime, calls that need them fail with
//! [`InvalidState`](crate::Cause::InvalidState). tokio reports a missing driver only by a panic. The library catches
//! it, but the program's panic hook still runs, and a program that aborts on panics is aborted.
//!
//! For other runtimes, each object that waits has a descriptor ([`AsFd`](std::os::fd::AsFd)). See
//! [`Connection`](crate::Connection) and [`Socket`](crate::datagram::Socket) for its use.

mod connection;
mod connector;
mod datagram;
mod events;
mod listener;
mod posted;
mod race;
pub(crate) mod runtime;

pub use connection::AsyncConnection;
pub use datagram::{AsyncService, AsyncSocket};
pub use events::{AsyncCompletions, AsyncEventChannel};
pub use listener::AsyncListener;
pub use posted::Posted;
