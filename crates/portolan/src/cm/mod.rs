//! The low-level API: event channels, ids and events with the semantics of `rdma_cm(7)`.
//!
//! Operations on a [`CmId`] start work; an [`Event`] on the id's [`EventChannel`] reports its end.
//! The channel's descriptor ([`std::os::fd::AsFd`]) is readable while an event is queued. A
//! synchronous id ([`CmId::synchronous`], [`CmId::endpoint`]) has a private channel: its operations
//! wait.
//!
//! ```
//! use portolan::cm::{CmId, EventChannel, EventType};
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
//! # From a name to a connection, and to its end
//!
//! An event ends each step, and [`Event::id`] says whose: [`CmId::number`] is the key to what a program knows about an id.
//! Here one channel serves several ids, and one completion queue all their queue pairs. A [`QueuePairPlan`] without
//! completion queues creates two for each queue pair, each with a descriptor.
//!
//! ```
//! use portolan::cm::{CmId, ConnParam, EventChannel, EventType, QpCap, QpInit, QpType, QueuePairPlan};
//! use portolan::resolve::{Family, Hints};
//! use std::collections::HashMap;
//! use std::time::Duration;
//!
//! const PATIENCE: Duration = Duration::from_secs(10);
//! # let listener = portolan::Listener::bind("127.0.0.1:0")?;
//! # let port = listener.local_addr()?.port().to_string();
//! # let server = std::thread::spawn(move || -> portolan::Result<()> {
//! #     let accepted = [listener.accept()?.accept()?, listener.accept()?.accept()?];
//! #     accepted.iter().try_for_each(|one| one.wait_disconnected(PATIENCE))
//! # });
//! let channel = EventChannel::open()?;
//! let hints = Hints::new().family(Family::Inet);
//! let mut ids = HashMap::new();
//! for name in ["localhost", "127.0.0.1"] {
//!     let id = CmId::new(&channel)?;
//!     id.resolve_addrinfo(Some(name), Some(&port), Some(&hints))?;
//!     ids.insert(id.number(), (name, id));
//! }
//! let mut completions = None;
//! while !ids.is_empty() {
//!     let event = channel.next_event_within(PATIENCE)?;
//!     let id = event.id();
//!     match event.event_type() {
//!         EventType::AddrinfoResolved => {
//!             let found = id.query_addrinfo()?;
//!             let to = found.iter().find_map(|each| each.dst_addr?.inet());
//!             id.resolve_addr(None, to.expect("an IP address"), PATIENCE)?;
//!         }
//!         EventType::AddrResolved => id.resolve_route(PATIENCE)?,
//!         EventType::RouteResolved => {
//!             let cq = match &completions {
//!                 Some(cq) => cq,
//!                 None => completions.insert(id.device()?.create_cq(64, None, 0)?),
//!             };
//!             let cap = QpCap {
//!                 max_send_wr: 8,
//!                 max_recv_wr: 8,
//!                 max_send_sge: 1,
//!                 max_recv_sge: 1,
//!                 max_inline_data: 0,
//!             };
//!             id.create_planned_queue_pair(&QueuePairPlan {
//!                 pd: None,
//!                 send_cq: Some(cq.clone()),
//!                 recv_cq: Some(cq.clone()),
//!                 srq: None,
//!                 init: QpInit { qp_type: QpType::Rc, cap, sq_sig_all: true },
//!             })?;
//!             // The defaults are no retries and no reads.
//!             id.connect(&ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() })?;
//!         }
//!         EventType::Established => id.disconnect()?,
//!         EventType::Disconnected => {
//!             let ended = ids.remove(&id.number());
//!             println!("{} is done", ended.expect("an id of ours").0);
//!         }
//!         other => return Err(event.failure().unwrap_or_else(|| panic!("{other}"))),
//!     }
//! }
//! # server.join().unwrap()?;
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! `Disconnected` is also a [failure](EventData::failure), so a program looks at the type before. The programs
//! [`connect_many`](crate::examples::connect_many) and [`with_c`](crate::examples::with_c) do the same with tokio, and
//! with a C program as peer.
//!
//! With the feature `tokio`, `tasks::AsyncEventChannel` awaits events, and `tasks::AsyncCompletions` the completions of an
//! id's queue pair.

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
pub(crate) use id::QueuePairOwner;
pub use id::{CmId, Completions, NewQueuePair, QueuePairPlan, RESOURCES_MAX};
pub use membership::Membership;
pub use names::RESOLVE_ADDRINFO_TIMEOUT;
// What these functions take and return, so that a program needs no other module.
pub use portolan_provider::cm::{ConnParam, EventType};
pub use portolan_provider::traits::Cq;
pub use portolan_provider::verbs::{QpCap, QpInit, QpType};
