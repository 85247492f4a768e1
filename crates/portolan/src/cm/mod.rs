//! The low layer: event channels, ids and events with the semantics of `rdma_cm(7)`.
//!
//! Operations on a [`CmId`] start work; its end is an [`Event`] on the id's [`EventChannel`].
//! The channel's descriptor ([`std::os::fd::AsFd`]) is readable while an event waits. A synchronous id
//! ([`CmId::synchronous`], [`CmId::endpoint`]) has no channel of the user's: its operations wait.

mod channel;
mod counts;
mod endpoint;
mod event;
mod id;
mod multicast;
mod names;
mod sync;

pub use channel::EventChannel;
pub use endpoint::AddressInfo;
pub use event::{Event, EventData};
pub use id::{CmId, Completions, NewQueuePair, QueuePairPlan, RESOURCES_MAX};
pub use multicast::Membership;
pub use names::RESOLVE_ADDRINFO_TIMEOUT;
