//! Names, routes and neighbours: what a connection must know before its first packet.
//!
//! Three look-ups, each usable by itself:
//!
//! * [`names`]: a host and a service become socket addresses. Numeric text is read here; the rest
//!   goes to the system's resolver. [`endpoint`] splits `host:port` text.
//! * [`route`]: a destination becomes a source address, an interface and a next hop, as the
//!   kernel's own routing decides (policy rules included).
//! * [`neighbour`]: a next hop becomes a link-layer address, asynchronously, or the certainty that
//!   nobody answers there.
//!
//! ```
//! use portolan_addrinfo::{NameOptions, lookup, resolve};
//!
//! let names = resolve(Some("127.0.0.1"), Some("7471"), NameOptions::default()).unwrap();
//! let route = lookup(&names[0].addr.into()).unwrap();
//! assert!(route.source.is_loopback() && !route.needs_neighbour());
//! ```
//!
//! The decisions are pure code; sockets, threads and libc are under `sys/` and in
//! `neighbour/driver.rs`.

pub mod addrinfo;
pub mod background;
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

pub use addrinfo::{AddrInfo, get_addrinfo, get_addrinfo_with};
pub use background::start_addrinfo;
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
pub use sys::process_cell::ProcessCell;
