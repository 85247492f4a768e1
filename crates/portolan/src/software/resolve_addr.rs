//! Resolves a destination: the route, the device of the source address, and whether the next hop answers on its link.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_addrinfo::neighbour::{DEADLINE_MAX, Resolver, Watch};
use portolan_addrinfo::{LinkAddress, route};
use portolan_cm::{Neighbour, Query, ResolvedAddress};
use portolan_provider::Cause;
use portolan_provider::address::ip_to_gid;

use super::core::Core;

/// Hop limit if the route has none: Linux's `ip_default_ttl`.
const HOP_LIMIT: u8 = 64;

impl Core {
    /// Answers the engine's question for an address: at once, or when the neighbour's resolution ends.
    pub(super) fn answer_address_query(&self, query: Query) {
        let Query::Address {
            id,
            query,
            source,
            destination,
            deadline,
        } = query;
        let (resolved, next_hop) = match look_up(self, source, destination) {
            Ok(found) => found,
            Err(cause) => return self.address_resolved(id, query, Err(cause)),
        };
        let Some((hop, interface)) = next_hop else {
            return self.address_resolved(id, query, Ok((resolved, None)));
        };
        let left = deadline.saturating_sub(self.epoch.elapsed());
        let waiting = self.downgrade();
        let done = Box::new(move |outcome: Result<_, Cause>| {
            let Some(core) = waiting.upgrade() else {
                return;
            };
            let answer =
                outcome.map(|known| with_neighbour(&core, resolved, (hop, interface), known));
            core.address_resolved(id, query, answer);
        });
        let resolver = Resolver::shared();
        let left = left.min(DEADLINE_MAX);
        let asked = resolver.and_then(|resolver| resolver.resolve(hop, interface, left, done));
        if let Err(cause) = asked {
            self.address_resolved(id, query, Err(cause));
        }
    }
}

/// Adds the next hop and its watch, if the next hop has an address that may change.
fn with_neighbour(
    core: &Core,
    resolved: ResolvedAddress,
    (address, interface_index): (IpAddr, u32),
    known: LinkAddress,
) -> (ResolvedAddress, Option<Arc<Watch>>) {
    let neighbour = known.ethernet().map(|link_address| Neighbour {
        interface_index,
        address,
        link_address,
    });
    let watch = neighbour.and_then(|neighbour| core.watch(&neighbour, known));
    let resolved = ResolvedAddress {
        neighbour,
        ..resolved
    };
    (resolved, watch)
}

/// The route and device; also the next hop and its interface if the link must be asked.
fn look_up(
    core: &Core,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<(ResolvedAddress, Option<(IpAddr, u32)>), Cause> {
    if let Some(resolved) = look_up_here(core, source, destination) {
        return Ok((resolved, None));
    }
    let route = find_route(source, destination)?;
    let source_ip = pinned(source).unwrap_or(route.source);
    // A link-local source must be on the link to the destination.
    let interface = scope_of(destination).unwrap_or(route.interface_index);
    // Packets to 127.0.0.2, for example, stay on this host, and no software device answers them.
    if route.is_on_this_machine() && !is_known(core, destination.ip(), interface) {
        return Err(core.no_device(destination.ip()));
    }
    let device = core.find_device(source_ip, interface).ok_or_else(|| {
        let unknown = || {
            let destination = destination.ip();
            format!("{source_ip}, the source for {destination}, is on no interface")
        };
        let why = core.stack().why_left_out(source_ip).unwrap_or_else(unknown);
        Cause::NoDevice { why }
    })?;
    let resolved = ResolvedAddress {
        source: with_scope(source_ip, source.map_or(0, |s| s.port()), destination),
        destination,
        device,
        dgid: ip_to_gid(destination.ip()),
        hop_limit: route.hop_limit.unwrap_or(HOP_LIMIT),
        neighbour: None,
    };
    let asks = route.needs_neighbour();
    Ok((
        resolved,
        asks.then(|| (route.next_hop(), route.interface_index)),
    ))
}

/// Whether an address of this host is a device's. The loopback interface's addresses hardly change, so that the interfaces are not
/// read again for each connect to 127.0.0.53.
fn is_known(core: &Core, ip: IpAddr, interface: u32) -> bool {
    let device = match ip.is_loopback() {
        true => core.bound_device(ip, interface),
        false => core.find_device(ip, interface),
    };
    device.is_some()
}

/// The device for an address of this host, as the table of local routes has it: an interface's own address is the source
/// of packets to itself. `None` if the routing tables must be asked.
fn look_up_here(
    core: &Core,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Option<ResolvedAddress> {
    let source_ip = pinned(source).unwrap_or(destination.ip());
    let device = core.active_device(source_ip)?;
    if source_ip != destination.ip() {
        core.active_device(destination.ip())?;
    }
    Some(ResolvedAddress {
        source: SocketAddr::new(source_ip, source.map_or(0, |s| s.port())),
        destination,
        device,
        dgid: ip_to_gid(destination.ip()),
        hop_limit: HOP_LIMIT,
        neighbour: None,
    })
}

/// The route that the routing tables select to a destination, from a source if given.
pub(super) fn find_route(
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<route::Route, Cause> {
    route::lookup(&route::Query {
        destination: destination.ip(),
        interface_index: scope_of(destination),
        source: pinned(source),
    })
}

/// The address of a source, unless it is only a port.
fn pinned(source: Option<SocketAddr>) -> Option<IpAddr> {
    source
        .map(|source| source.ip())
        .filter(|ip| !ip.is_unspecified())
}

/// The interface in the zone of an address.
pub(super) fn scope_of(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(v6.scope_id()),
        _ => None,
    }
}

/// A source address on the link of a link-local destination.
fn with_scope(ip: IpAddr, port: u16, destination: SocketAddr) -> SocketAddr {
    match (ip, destination) {
        (IpAddr::V6(v6), SocketAddr::V6(to)) if v6.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(v6, port, 0, to.scope_id()).into()
        }
        _ => SocketAddr::new(ip, port),
    }
}
