//! Posted work: which buffer belongs to which work request, and which threads and tasks wait for
//! it.
//!
//! Posting moves a buffer into the table; the completion takes it out. Any waiting thread or task
//! drives the completion queue for all of them. One at a time sleeps on the completion channel, and
//! wakes the others.

mod abandoned;
mod bell;
mod keepalive;
mod message;
mod outcome;
mod pieces;
mod probe;
mod table;
mod transfer;
#[cfg(feature = "tokio")]
mod turned;

pub(crate) use bell::Bell;
pub use keepalive::Keepalive;
pub use message::Message;
pub use outcome::{Done, Failed};
pub use pieces::Gather;
pub(crate) use probe::Watched;
pub(crate) use table::{Depths, Turn, Work};
pub use transfer::Transfer;
