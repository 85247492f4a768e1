//! RTM_GETROUTE requests and their replies, as pure code.

use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use portolan_provider::Cause;
use portolan_provider::error::errno;

use super::{Query, Route, RouteKind};

/// Refuses invalid queries.
pub(super) fn check(query: &Query) -> Result<(), Cause> {
    let invalid = |what, expected: &str, found: IpAddr| Cause::InvalidArgument {
        what,
        expected: expected.into(),
        found: found.to_string(),
    };
    let Query {
        destination,
        interface_index,
        source,
    } = *query;
    if destination.is_unspecified() {
        return Err(invalid(
            "destination",
            "an address of a host or group",
            destination,
        ));
    }
    if is_link_local(destination) && interface_index.is_none() {
        let expected = "a zone with a link-local address, as in fe80::1%eth0";
        return Err(invalid("destination", expected, destination));
    }
    match source {
        Some(source) if source.is_ipv4() != destination.is_ipv4() => Err(invalid(
            "source",
            "an address of the destination's family",
            source,
        )),
        Some(source) if source.is_unspecified() || source.is_multicast() => {
            Err(invalid("source", "an address of this machine", source))
        }
        Some(source) if is_link_local(source) && interface_index.is_none() => Err(invalid(
            "source",
            "an interface with a link-local address",
            source,
        )),
        _ => Ok(()),
    }
}

/// Whether the address needs an interface (RFC 4007). Linux routes IPv4's link-local addresses like any other.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        // Interface-local and link-local multicast (RFC 4291 section 2.7) are scoped too.
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || (address.is_multicast() && matches!(address.segments()[0] & 0xf, 1 | 2))
        }
    }
}

/// The request. `uid` selects the policy rules, as a socket's owner does.
pub(super) fn request(query: &Query, uid: u32) -> RouteNetlinkMessage {
    let bits = if query.destination.is_ipv4() { 32 } else { 128 };
    let mut message = RouteMessage::default();
    message.header.address_family = match query.destination {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.destination_prefix_length = bits;
    // Report the table that was used instead of always the main one.
    message.header.flags = RouteFlags::LookupTable;
    message
        .attributes
        .push(RouteAttribute::Destination(query.destination.into()));
    if let Some(source) = query.source {
        message.header.source_prefix_length = bits;
        message
            .attributes
            .push(RouteAttribute::Source(source.into()));
    }
    if let Some(index) = query.interface_index {
        message.attributes.push(RouteAttribute::Oif(index));
    }
    message.attributes.push(RouteAttribute::Uid(uid));
    RouteNetlinkMessage::GetRoute(message)
}

/// Reads the reply: a route, or the errno (positive) of an unreachable destination.
///
/// IPv4 reports such an errno as a netlink error; IPv6 as a route of that type, with the errno in its cache
/// information.
pub(super) fn read(query: &Query, message: &RouteMessage) -> Result<Result<Route, i32>, Cause> {
    let kind = match message.header.kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local if query.destination.is_loopback() => RouteKind::Loopback,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Anycast => RouteKind::Anycast,
        RouteType::Multicast => RouteKind::Multicast,
        RouteType::Unreachable => return Ok(Err(errno::EHOSTUNREACH)),
        RouteType::BlackHole => return Ok(Err(errno::EINVAL)),
        RouteType::Prohibit => return Ok(Err(errno::EACCES)),
        _ => return Ok(Err(errno::ENETUNREACH)),
    };
    let mut preferred_source = None;
    let mut route = Route {
        destination: query.destination,
        kind,
        source: query.destination,
        interface_index: 0,
        gateway: None,
        mtu: None,
        hop_limit: None,
        table: message.header.table.into(),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.interface_index = *index,
            RouteAttribute::PrefSource(address) => preferred_source = ip(address),
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => route.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => {
                route.gateway = Some((*address).into());
            }
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Metrics(metrics) => read_metrics(metrics, &mut route),
            RouteAttribute::CacheInfo(info) if info.error != 0 => {
                // A negative errno, in a field that the kernel declares unsigned.
                return Ok(Err((info.error as i32).saturating_neg()));
            }
            _ => {}
        }
    }
    route.source = match query.source.or(preferred_source) {
        Some(source) if !source.is_unspecified() => source,
        // The interface has no usable source address.
        _ => return Err(Cause::AddressNotAvailable),
    };
    if query.destination.is_multicast() {
        route.kind = RouteKind::Multicast;
        route.gateway = None;
    }
    Ok(Ok(route))
}

fn read_metrics(metrics: &[RouteMetric], route: &mut Route) {
    for metric in metrics {
        match metric {
            RouteMetric::Mtu(mtu) if *mtu != 0 => route.mtu = Some(*mtu),
            // Zero and all ones mean that the route sets no limit.
            RouteMetric::Hoplimit(limit) => {
                route.hop_limit = u8::try_from(*limit).ok().filter(|limit| *limit != 0);
            }
            _ => {}
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteCacheInfo;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    fn reply(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.kind = kind;
        message.header.table = 252;
        message.attributes = attributes;
        message
    }

    #[test]
    fn a_reply_gives_source_interface_gateway_and_metrics() {
        let query = Query::to(ip("198.51.100.7"));
        let message = reply(
            RouteType::Unicast,
            vec![
                RouteAttribute::Table(1000),
                RouteAttribute::Oif(3),
                RouteAttribute::Gateway(ip("192.0.2.1").into()),
                RouteAttribute::PrefSource(ip("192.0.2.9").into()),
                RouteAttribute::Metrics(vec![RouteMetric::Mtu(9000), RouteMetric::Hoplimit(7)]),
            ],
        );
        let route = read(&query, &message).expect("readable").expect("a route");
        let expected = Route {
            destination: ip("198.51.100.7"),
            kind: RouteKind::Unicast,
            source: ip("192.0.2.9"),
            interface_index: 3,
            gateway: Some(ip("192.0.2.1")),
            mtu: Some(9000),
            hop_limit: Some(7),
            table: 1000,
        };
        assert_eq!(route, expected);
        assert_eq!(route.next_hop(), ip("192.0.2.1"));
        assert!(route.needs_neighbour());
    }

    #[test]
    fn an_ipv4_route_may_have_an_ipv6_gateway() {
        let attributes = vec![
            RouteAttribute::Via(RouteVia::Inet6("fe80::1".parse().expect("address"))),
            RouteAttribute::PrefSource(ip("192.0.2.9").into()),
        ];
        let query = Query::to(ip("198.51.100.7"));
        let route = read(&query, &reply(RouteType::Unicast, attributes));
        assert_eq!(
            route.expect("readable").expect("a route").next_hop(),
            ip("fe80::1")
        );
    }

    #[test]
    fn unreachable_routes_give_their_errno() {
        let query = Query::to(ip("2001:db8::1"));
        // `struct rta_cacheinfo`: eight words, the fourth is rta_error.
        let mut info = [0; 32];
        info[12..16].copy_from_slice(&(-errno::ENETUNREACH).to_ne_bytes());
        let info = RouteCacheInfo::parse(&info).expect("cache information");
        let cached = vec![RouteAttribute::CacheInfo(info)];
        for (kind, attributes, code) in [
            (RouteType::Unreachable, vec![], errno::EHOSTUNREACH),
            (RouteType::BlackHole, vec![], errno::EINVAL),
            (RouteType::Prohibit, vec![], errno::EACCES),
            (RouteType::Throw, vec![], errno::ENETUNREACH),
            (RouteType::Unicast, cached, errno::ENETUNREACH),
        ] {
            assert_eq!(
                read(&query, &reply(kind, attributes)),
                Ok(Err(code)),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_route_without_any_source_address_is_an_error() {
        let query = Query::to(ip("198.51.100.7"));
        let no_source = reply(RouteType::Unicast, vec![RouteAttribute::Oif(3)]);
        assert_eq!(read(&query, &no_source), Err(Cause::AddressNotAvailable));
    }

    #[test]
    fn questions_without_meaning_are_refused() {
        for query in [
            Query::to(ip("0.0.0.0")),
            Query::to(ip("fe80::1")),
            Query::to(ip("ff02::1")),
            Query::to(ip("192.0.2.1")).with_source(ip("::1")),
            Query::to(ip("192.0.2.1")).with_source(ip("0.0.0.0")),
            Query::to(ip("2001:db8::1")).with_source(ip("ff02::1")),
            Query::to(ip("2001:db8::1")).with_source(ip("fe80::1")),
        ] {
            let refused = check(&query);
            assert!(
                matches!(refused, Err(Cause::InvalidArgument { .. })),
                "{query:?}"
            );
        }
        assert_eq!(check(&Query::to(ip("fe80::1")).on_interface(2)), Ok(()));
        assert_eq!(check(&Query::to(ip("ff0e::1"))), Ok(()));
    }
}
