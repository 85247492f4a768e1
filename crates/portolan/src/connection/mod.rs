//! The high layer: connections with buffers, deadlines and no callbacks.
//!
//! [`Connector`] makes a [`Connection`] to a [`Listener`], whose [`Incoming`] requests are accepted
//! or rejected. Blocking here; the same for tasks under the feature `tokio`.

mod connector;
mod established;
mod inner;
mod listener;
mod options;
mod race;
mod spin;

#[cfg(feature = "tokio")]
pub(crate) use connector::Attempt;
pub use connector::Connector;
pub(crate) use connector::no_address;
pub use established::Connection;
pub(crate) use inner::Inner;
pub use listener::{Incoming, Listener};
#[cfg(feature = "tokio")]
pub(crate) use listener::{accept_outcome, unconfirmed};
pub use options::Options;
#[cfg(feature = "tokio")]
pub(crate) use race::{ATTEMPT_DELAY, Failures};
pub(crate) use race::{Race, Runner};
