//! The RDMA connection protocol as a pure state machine.
//!
//! [`Cm`] is Linux's rdma_cm and ib_cm in one: ids, their addresses and routes, listeners, and the
//! handshake of the InfiniBand communication manager (IBTA volume 1, chapter 12) as RoCEv2 carries
//! it. It has no socket, clock, thread or randomness of its own: its owner brings messages and
//! the time, and takes away what it has to say.
//!
//! # The drain rule
//!
//! Every call that changes something takes `now`, a time since an epoch of the caller's choice that
//! never goes back. After it, take everything from [`Cm::poll_transmit`], [`Cm::poll_query`],
//! [`Cm::poll_group_query`], [`Cm::poll_event`] and [`Cm::poll_displaced`]; then sleep until [`Cm::poll_timeout`] and call [`Cm::handle_timeout`], or
//! until a message comes and call [`Cm::handle_mad`]. While a queue is full the engine takes nothing
//! in: messages are dropped as if the network had lost them, commands fail with `LimitReached`, timers
//! wait.
//!
//! ```
//! # use core::time::Duration;
//! # use portolan_cm::{Cm, Config, MadPath};
//! fn turn(cm: &mut Cm, now: Duration, received: Option<(MadPath, &[u8])>) -> Option<Duration> {
//!     match received {
//!         Some((path, mad)) => cm.handle_mad(now, &path, mad),
//!         None => cm.handle_timeout(now),
//!     }
//!     while let Some(query) = cm.poll_query() {
//!         println!("to the routing and neighbour tables: {query:?}");
//!     }
//!     while let Some(transmit) = cm.poll_transmit() {
//!         println!("from {} to {}", transmit.path.local, transmit.path.remote);
//!     }
//!     while let Some(event) = cm.poll_event() {
//!         println!("to the owner of {}: {}", event.id, event.event);
//!     }
//!     cm.poll_timeout()
//! }
//!
//! let mut cm = Cm::new(Config::default(), [7; 32]);
//! assert_eq!(turn(&mut cm, Duration::ZERO, None), None, "nothing to do, nothing to wait for");
//! ```
//!
//! # What is where
//!
//! * [`state`]: the states and the table of every legal transition, with its source.
//! * [`ports`]: which local ports are taken, and by whom. One table serves a whole host, so it stands
//!   beside the engine and not inside.
//! * Commands by the part of a connection's life they are for: `resolve`, `listen`, `active`,
//!   `passive`, `teardown`; `sidr` for datagrams, which need no connection, and `multicast` for their
//!   groups; `infiniband` for native addresses; `qp_attr` for queue pairs; and `query`, which changes nothing but options.
//! * `device`: devices that go, and hardware addresses that change.
//! * `receive` takes messages apart and hands them to those; `transmit` makes and sends them;
//!   `advance` is the one place where an id changes its state.
//! * `half_open`: connections that the peer has not confirmed yet, and which of them goes when they are too
//!   many.
//! * `held`: requests for a service whose listener has just closed, and may open again.
//! * `peer_death`: what becomes of connections whose peer is known to have died.
//! * `retry`, `pace`, `timers`, `timeout` and `timewait` are about time.
//!
//! Alternate paths are not spoken: their messages are counted and dropped, as Linux drops them on
//! RoCE.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod active;
mod advance;
mod comm_ids;
mod config;
mod counters;
mod engine;
mod half_open_requests;
mod hash;
mod id;
mod infiniband;
#[doc(hidden)]
pub mod mutant;
mod pace;
mod params;
mod passive;
mod peer_death;
pub mod ports;
mod qp_attr;
mod query;
mod receive;
mod resolve;
mod retry;
mod sidr;
pub mod state;
mod table;
mod teardown;
mod timeout;
mod transmit;
mod types;

pub use active::REQ_PRIVATE_DATA_MAX;
pub use config::{Config, MAX_IDS, time_of_exponent};
pub use counters::{ByMessage, Counters, DropReason};
pub use engine::Cm;
pub use infiniband::IB_REQ_PRIVATE_DATA_MAX;
pub use passive::REP_PRIVATE_DATA_MAX;
pub use query::{Listed, TableSizes};
pub use sidr::{SIDR_REP_PRIVATE_DATA_MAX, SIDR_REQ_PRIVATE_DATA_MAX};
pub use state::State;
pub use teardown::REJ_PRIVATE_DATA_MAX;
pub use types::{
    BoundDevice, GroupQuery, IdOptions, Lids, MadPath, Membership, MembershipNumber, Neighbour,
    Query, QueryNumber, ResolvedAddress, Transmit,
};
