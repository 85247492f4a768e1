//! Routes: the source address, interface and next hop of a destination.
//!
//! The kernel decides, as for connect(2): RTM_GETROUTE (rtnetlink(7)) applies the policy rules with
//! the caller's user id, and needs no privilege.

mod client;
mod message;

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use portolan_provider::Cause;
use portolan_threads::fork::ForkGuard;

pub use client::{Client, EXCHANGE_DEADLINE};
pub(crate) use message::is_link_local;

/// A query to the routing tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    /// The destination.
    pub destination: IpAddr,
    /// The outgoing interface: the scope id of a link-local address, or a socket's bound device.
    /// `None` lets the routing tables choose.
    pub interface_index: Option<u32>,
    /// The source address, if fixed. It must be one of this machine's.
    pub source: Option<IpAddr>,
}

impl Query {
    /// A query for the route to this address.
    pub fn to(destination: IpAddr) -> Self {
        Self {
            destination,
            interface_index: None,
            source: None,
        }
    }

    /// Sets the source address.
    #[must_use]
    pub fn with_source(self, source: IpAddr) -> Self {
        Self {
            source: Some(source),
            ..self
        }
    }

    /// Sets the interface.
    #[must_use]
    pub fn on_interface(self, interface_index: u32) -> Self {
        Self {
            interface_index: Some(interface_index),
            ..self
        }
    }
}

impl From<SocketAddr> for Query {
    /// A query for the route to this address, within its scope if it has one.
    fn from(destination: SocketAddr) -> Self {
        let query = Self::to(destination.ip());
        match destination {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => query.on_interface(v6.scope_id()),
            _ => query,
        }
    }
}

/// The kind of a route's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// Another host, on the link or behind a gateway.
    Unicast,
    /// An address of this machine that is on one of its interfaces.
    Local,
    /// `127.0.0.0/8` or `::1`.
    Loopback,
    /// All hosts of a link.
    Broadcast,
    /// One of several hosts.
    Anycast,
    /// A multicast group.
    Multicast,
}

/// The kernel's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The queried destination.
    pub destination: IpAddr,
    /// Its kind.
    pub kind: RouteKind,
    /// The source address of packets.
    pub source: IpAddr,
    /// The outgoing interface; `lo` for local and loopback destinations.
    pub interface_index: u32,
    /// The router, if the destination is not on the link. It may be of the other family (RFC 5549).
    pub gateway: Option<IpAddr>,
    /// The route's own MTU in bytes, if set; otherwise the interface's applies.
    pub mtu: Option<u32>,
    /// The route's own hop limit, if set.
    pub hop_limit: Option<u8>,
    /// The routing table that matched.
    pub table: u32,
}

impl Route {
    /// The receiver of the packets on the link: the gateway, or the destination itself.
    pub fn next_hop(&self) -> IpAddr {
        self.gateway.unwrap_or(self.destination)
    }

    /// Returns whether packets stay on this machine.
    pub fn is_on_this_machine(&self) -> bool {
        matches!(self.kind, RouteKind::Local | RouteKind::Loopback)
    }

    /// Returns whether the next hop's link-layer address must be resolved before packets can be
    /// sent; see [`crate::neighbour`].
    pub fn needs_neighbour(&self) -> bool {
        matches!(self.kind, RouteKind::Unicast | RouteKind::Anycast)
    }
}

impl fmt::Display for Route {
    /// Formats like `ip route get`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        write!(f, " if {} src {}", self.interface_index, self.source)?;
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        write!(f, " table {}", self.table)
    }
}

/// Queries the kernel, on a socket that the calling thread keeps open.
///
/// The socket stays in the network namespace of the thread's first query. A program that changes
/// namespaces uses its own [`Client`] in each.
///
/// # Errors
/// As [`Client::lookup`]; also errors of opening a netlink socket.
pub fn lookup(query: &Query) -> Result<Route, Cause> {
    thread_local! {
        static CLIENT: RefCell<Option<(ForkGuard, Client)>> = const { RefCell::new(None) };
    }
    // A forked child shares its parent's socket, and would take the parent's replies.
    let process = ForkGuard::new();
    let asked = CLIENT.try_with(|slot| {
        let mut slot = slot.borrow_mut();
        let mut client = match slot.take() {
            Some((owner, client)) if owner == process => client,
            _ => Client::open()?,
        };
        let outcome = client.lookup(query);
        *slot = Some((process, client));
        outcome
    });
    // The thread is ending and its socket is closed.
    asked.unwrap_or_else(|_| Client::open()?.lookup(query))
}
