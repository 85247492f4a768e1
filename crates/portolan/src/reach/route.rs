//! Ethernet: routes to a GID as an IP address.

use std::net::IpAddr;

use portolan_addrinfo::route::{Query, Route, RouteKind, lookup};
use portolan_provider::Cause;
use portolan_provider::address::ip_to_gid;
use portolan_wire::addr::Gid;

use super::Reason;

/// Maximum number of a port's source addresses to try if routing selects none of them.
const SOURCES_MAX: usize = 16;

/// The source addresses of an Ethernet port.
#[derive(Clone, Debug, Default)]
pub(super) struct Ethernet {
    /// The IP addresses of its GIDs.
    pub(super) addresses: Vec<IpAddr>,
    /// The network interfaces of its GIDs.
    pub(super) interfaces: Vec<u32>,
}

impl Ethernet {
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let gid = ip_to_gid(address);
        self.addresses.iter().any(|own| ip_to_gid(*own) == gid)
    }
}

/// A route to the GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) source: IpAddr,
    pub(super) interface_index: u32,
    /// The next hop, which must answer on the link; `None` if the GID is this host's.
    pub(super) next_hop: Option<IpAddr>,
}

/// Finds the routes from a port to a GID, at least one: from one of the port's addresses, by routing
/// and its rules. A link-local GID may be on the link of each of the port's interfaces.
pub(super) fn find(port: &Ethernet, gid: Gid) -> Result<Vec<Way>, Reason> {
    let destination = gid.to_ip();
    if gid.is_link_local() {
        return on_link(port, destination);
    }
    // Try routing's own choice first, then each of the port's addresses.
    let chosen = lookup(&Query::to(destination));
    let why = match chosen {
        Ok(route) if port.has(route.source) => return Ok(vec![way(&route)?]),
        Ok(route) => {
            let source = route.source;
            Reason::NoPath(format!(
                "the route leaves from {source}, which is not this port's"
            ))
        }
        Err(cause) => Reason::from(cause),
    };
    let is_of_family = |own: &&IpAddr| own.is_ipv4() == destination.is_ipv4();
    let sources = port.addresses.iter().filter(is_of_family).take(SOURCES_MAX);
    for source in sources {
        match lookup(&Query::to(destination).with_source(*source)) {
            Ok(route) if is_of_port(port, &route) => return Ok(vec![way(&route)?]),
            Err(cause) => {
                no_route(cause)?;
            }
            Ok(_) => {}
        }
    }
    Err(why)
}

/// The routes to a link-local address, one for each of the port's links.
fn on_link(port: &Ethernet, destination: IpAddr) -> Result<Vec<Way>, Reason> {
    let mut why = Reason::NoPath("the port has no network interface".into());
    let mut ways = Vec::new();
    for index in &port.interfaces {
        match lookup(&Query::to(destination).on_interface(*index)) {
            Ok(route) if is_of_port(port, &route) => {
                let way = way(&route)?;
                if way.next_hop.is_none() {
                    return Ok(vec![way]);
                }
                ways.push(way);
            }
            Ok(route) => {
                let source = route.source;
                why = Reason::NoPath(format!("{source} is no GID of the port"));
            }
            Err(cause) => why = no_route(cause)?,
        }
    }
    match ways.is_empty() {
        true => Err(why),
        false => Ok(ways),
    }
}

/// Why a query found no route. One that failed gives no answer, whatever the others return.
fn no_route(cause: Cause) -> Result<Reason, Reason> {
    match Reason::from(cause) {
        failed @ (Reason::NoMemory(_) | Reason::Interrupted) => Err(failed),
        reason => Ok(reason),
    }
}

/// Returns whether packets leave through the port or stay on this host.
fn is_of_port(port: &Ethernet, route: &Route) -> bool {
    let is_local = matches!(route.kind, RouteKind::Local | RouteKind::Loopback);
    port.has(route.source) && (is_local || port.interfaces.contains(&route.interface_index))
}

fn way(route: &Route) -> Result<Way, Reason> {
    let next_hop = match route.kind {
        RouteKind::Local | RouteKind::Loopback => None,
        RouteKind::Unicast | RouteKind::Anycast => Some(route.next_hop()),
        RouteKind::Broadcast | RouteKind::Multicast => {
            return Err(Reason::InvalidArgument {
                what: "GID",
                expected: "the address of one host",
                found: route.destination.to_string(),
            });
        }
    };
    Ok(Way {
        source: route.source,
        interface_index: route.interface_index,
        next_hop,
    })
}
