//! The low-level API: event channels, ids and events with the semantics of `rdma_cm(7)`.
//!
//! Operations on a [`CmId`] start work; an [`Event`] on the id's [`EventChannel`] reports its end.
//! The channel's descriptor ([`std::os::fd::AsFd`]) is readable while an event is queued. A
//! synchronous id ([`CmId::synchronous`], [`CmId::endpoint`]) has a private channel: its operations
//! wait.
//!
//! ```
//! use portolan::cm::{CmId, EventChannel};
//! use portolan::provider::cm::EventType;
//! use std::time::Duration;
//!
//! let channel = EventChannel::open()?;
//! let id = CmId::new(&channel)?;
//! let patience = Duration::from_secs(5);
//! id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), patience)?;
//! let event = channel.next_event_within(patience)?;
//! assert_eq!(event.event_type(), EventType::AddrResolved);
//! println!("{}", id.device()?.name());
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! With the feature `tokio`, `tokio::AsyncEventChannel` awaits events, and `tokio::AsyncCompletions` the completions of an id's
//! queue pair.

mod channel;
mod counts;
mod create;
mod endpoint;
mod event;
mod event_data;
mod id;
mod membership;
mod multicast;
mod name_lookup;
mod names;
mod sync;

pub use channel::EventChannel;
pub use endpoint::AddressInfo;
pub use event::Event;
pub use event_data::EventData;
pub use id::{CmId, Completions, NewQueuePair, QueuePairPlan, RESOURCES_MAX};
pub use membership::Membership;
pub use names::RESOLVE_ADDRINFO_TIMEOUT;
