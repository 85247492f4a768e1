//! Posted work: which buffer belongs to which work request, and who waits for its end.
//!
//! A buffer enters the table when its work is posted and leaves it with the completion. Any thread
//! or task that waits drives the completion queue for all of them: one at a time sleeps on the
//! completion channel, the others on its word.

mod keepalive;
mod message;
mod table;
mod transfer;
#[cfg(feature = "tokio")]
mod turned;
mod vigil;

pub(crate) use keepalive::Watched;
pub use message::Message;
pub(crate) use table::{Depths, Turn, Work};
pub use transfer::{Done, Failed, Transfer};
pub use vigil::Keepalive;
