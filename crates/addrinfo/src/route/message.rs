//! RTM_GETROUTE requests and their replies, as pure code.

use std::net::IpAddr;

use portolan_provider::Cause;
use portolan_provider::error::errno;

use super::{Query, Route, RouteKind};
use crate::sys::rtnetlink::{RouteAttribute, RouteMessage, RouteNetlinkMessage, family_of};

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
    let mut message = RouteMessage {
        family: family_of(query.destination),
        destination_prefix_length: bits,
        // Report the table that was used instead of always the main one.
        flags: libc::RTM_F_LOOKUP_TABLE,
        ..RouteMessage::default()
    };
    message
        .attributes
        .push(RouteAttribute::Destination(query.destination));
    if let Some(source) = query.source {
        message.source_prefix_length = bits;
        message.attributes.push(RouteAttribute::Source(source));
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
    let kind = match message.kind {
        libc::RTN_UNICAST => RouteKind::Unicast,
        libc::RTN_LOCAL if query.destination.is_loopback() => RouteKind::Loopback,
        libc::RTN_LOCAL => RouteKind::Local,
        libc::RTN_BROADCAST => RouteKind::Broadcast,
        libc::RTN_ANYCAST => RouteKind::Anycast,
        libc::RTN_MULTICAST => RouteKind::Multicast,
        libc::RTN_UNREACHABLE => return Ok(Err(errno::EHOSTUNREACH)),
        libc::RTN_BLACKHOLE => return Ok(Err(errno::EINVAL)),
        libc::RTN_PROHIBIT => return Ok(Err(errno::EACCES)),
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
        table: message.table.into(),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.interface_index = *index,
            RouteAttribute::PrefSource(address) => preferred_source = Some(*address),
            RouteAttribute::Gateway(address) | RouteAttribute::Via(address) => {
                route.gateway = Some(*address);
            }
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Mtu(mtu) if *mtu != 0 => route.mtu = Some(*mtu),
            // Zero and all ones mean that the route sets no limit.
            RouteAttribute::HopLimit(limit) => {
                route.hop_limit = u8::try_from(*limit).ok().filter(|limit| *limit != 0);
            }
            RouteAttribute::CacheError(error) if *error != 0 => {
                return Ok(Err(error.cast_signed().saturating_neg()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    fn reply(kind: u8, attributes: Vec<RouteAttribute>) -> RouteMessage {
        RouteMessage {
            kind,
            table: 252,
            attributes,
            ..RouteMessage::default()
        }
    }

    #[test]
    fn a_reply_gives_source_interface_gateway_and_metrics() {
        let query = Query::to(ip("198.51.100.7"));
        let message = reply(
            libc::RTN_UNICAST,
            vec![
                RouteAttribute::Table(1000),
                RouteAttribute::Oif(3),
                RouteAttribute::Gateway(ip("192.0.2.1")),
                RouteAttribute::PrefSource(ip("192.0.2.9")),
                RouteAttribute::Mtu(9000),
                RouteAttribute::HopLimit(7),
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
            RouteAttribute::Via(ip("fe80::1")),
            RouteAttribute::PrefSource(ip("192.0.2.9")),
        ];
        let query = Query::to(ip("198.51.100.7"));
        let route = read(&query, &reply(libc::RTN_UNICAST, attributes));
        assert_eq!(
            route.expect("readable").expect("a route").next_hop(),
            ip("fe80::1")
        );
    }

    #[test]
    fn unreachable_routes_give_their_errno() {
        let query = Query::to(ip("2001:db8::1"));
        let error = (-errno::ENETUNREACH).cast_unsigned();
        let cached = vec![RouteAttribute::CacheError(error)];
        for (kind, attributes, code) in [
            (libc::RTN_UNREACHABLE, vec![], errno::EHOSTUNREACH),
            (libc::RTN_BLACKHOLE, vec![], errno::EINVAL),
            (libc::RTN_PROHIBIT, vec![], errno::EACCES),
            (libc::RTN_THROW, vec![], errno::ENETUNREACH),
            (libc::RTN_UNICAST, cached, errno::ENETUNREACH),
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
        let no_source = reply(libc::RTN_UNICAST, vec![RouteAttribute::Oif(3)]);
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
