//! Posted work: which buffer belongs to which work request, and which threads and tasks wait for
//! it.
//!
//! Posting moves a buffer into the table; the completion takes it out. Any waiting thread or task
//! drives the completion queue for all of them. One at a time sleeps on the completion channel, and
//! wakes the others.
//!
//! ```
//! # let (server, client) = portolan::doc_pair()?;
//! let first = client.send(b"first".to_vec())?;
//! let second = client.send(b"second".to_vec())?;
//! assert_eq!(&server.receive()?[..], b"first");
//! // Work completes in the order of posting, and is waited for in any.
//! second.wait()?;
//! let vector: Vec<u8> = first.wait()?.buffer.into_memory().expect("the vector");
//! # Ok::<(), portolan::Error>(())
//! ```

mod abandoned;
mod batch;
mod collect;
mod item;
mod keepalive;
mod message;
mod objects;
mod outcome;
mod pieces;
mod probe;
mod reposting;
mod shared_receives;
mod slot;
mod table;
mod transfer;
#[cfg(feature = "tokio")]
mod turned;
mod windows;

pub(crate) use item::Item;
pub use keepalive::Keepalive;
pub use message::Message;
pub(crate) use objects::{Depths, Objects};
pub use outcome::{Done, Failed};
pub use pieces::Gather;
pub(crate) use probe::Watched;
pub use shared_receives::SharedReceiveQueue;
pub(crate) use shared_receives::no_own_receives;
pub(crate) use table::{Turn, Work};
pub use transfer::Transfer;
