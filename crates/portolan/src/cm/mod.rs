//! The low-level API: event channels, ids and events with the semantics of `rdma_cm(7)`.
//!
//! Operations on a [`CmId`] start work; an [`Event`] on the id's [`EventChannel`] reports its end.
//! The channel's descriptor ([`std::os::fd::AsFd`]) is readable while an event is queued. A
//! synchronous id ([`CmId::synchronous`], [`CmId::endpoint`]) has a private channel: its operations
//! wait.

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
