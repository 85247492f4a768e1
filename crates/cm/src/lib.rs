//! The RDMA connection protocol as a pure state machine.
//!
//! [`Cm`] combines Linux's rdma_cm and ib_cm: ids, their addresses and routes, listeners, and the handshake of the
//! InfiniBand communication manager (IBTA volume 1, chapter 12) as RoCEv2 carries it. It has no socket, clock, thread
//! or source of randomness. Its owner passes in messages and the time, and sends what it returns.
//!
//! # The drain rule
//!
//! Every call that changes something takes `now`, a monotonic time since an epoch that the caller chooses. After the
//! call, take everything from [`Cm::poll_transmit`], [`Cm::poll_query`], [`Cm::poll_group_query`], [`Cm::poll_event`]
//! and [`Cm::poll_displaced`]. Then sleep until [`Cm::poll_timeout`] and call [`Cm::handle_timeout`], or until a
//! message arrives and call [`Cm::handle_mad`]. While a queue is full, the engine accepts no input: it drops messages
//! as if the network had lost them, commands fail with `LimitReached`, and timers wait.
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
//! # Modules
//!
//! * [`state`]: the states and the table of every legal transition, with its source.
//! * [`ports`]: the local ports and their owners. One table serves a whole host, so it is separate from the engine.
//! * Commands by phase of a connection: `resolve`, `listen`, `active`, `passive`, `teardown`; `sidr` for datagrams,
//!   which need no connection; `multicast` for groups; `infiniband` for native addresses; `qp_attr` for queue pairs;
//!   `query` for options and read-only queries.
//! * `device`: removed devices and changed hardware addresses.
//! * `receive` parses messages and dispatches them; `transmit` builds and sends them; `advance` changes the state of
//!   ids.
//! * `half_open`: connections that the peer has not confirmed, and which of them to displace when there are too many.
//! * `held`: requests for a service whose listener is expected.
//! * `peer_death`: connections whose peer is known to have died.
//! * `retry`, `pace`, `timers`, `timeout` and `timewait` handle time.
//!
//! Alternate paths are not supported: their messages are counted and dropped, as Linux drops them on RoCE.

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
