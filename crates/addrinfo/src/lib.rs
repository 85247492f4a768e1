//! Names, routes and neighbours: what a connection needs before its first packet.
//!
//! Three lookups, each usable by itself:
//!
//! * [`names`]: resolves a host and a service to socket addresses. Numeric text is parsed here; the
//!   system's resolver handles the rest. [`endpoint`] splits `host:port` text.
//! * [`route`]: finds the source address, interface and next hop of a destination, as the kernel's
//!   own routing decides (including policy rules).
//! * [`neighbour`]: resolves a next hop to a link-layer address asynchronously, or reports that it
//!   does not answer.
//!
//! ```
//! use portolan_addrinfo::{NameOptions, lookup, resolve};
//!
//! let names = resolve(Some("127.0.0.1"), Some("7471"), NameOptions::default()).unwrap();
//! let route = lookup(&names[0].addr.into()).unwrap();
//! assert!(route.source.is_loopback() && !route.needs_neighbour());
//! ```
//!
//! The decisions are pure code; sockets, threads and libc are under `sys/`, in `names/sys.rs` and in
//! `neighbour/driver.rs`.

pub mod addrinfo;
pub mod background;
mod call;
pub mod endpoint;
pub mod error;
pub mod explain;
pub mod hints;
pub mod ibacm;
pub mod lookups;
pub mod names;
pub mod neighbour;
pub mod path;
pub mod plan;
pub mod route;
mod sys;

pub use addrinfo::AddrInfo;
pub use background::start_addrinfo;
pub use call::{get_addrinfo, get_addrinfo_with};
pub use error::{AddrInfoError, Problem};
pub use explain::{Decision, Explain};
pub use hints::{Family, Flags, Hints, QpType, RawHints};
pub use lookups::{Answer, Lookups, Question};
pub use names::Eai;
pub use path::PathData;
pub use plan::Plan;

pub use endpoint::{Endpoint, EndpointError, parse_endpoint};
pub use names::{NameError, NameOptions, NameResult, resolve};
pub use neighbour::{LinkAddress, Resolver, Ticket};
pub use route::{Query, Route, RouteKind, lookup};
