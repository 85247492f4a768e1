//! Routes through policy rules, several interfaces and both families. Needs root.

mod support;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_addrinfo::route::Client;
use portolan_addrinfo::{Query, Route, RouteKind};
use portolan_provider::Cause;
use support::{Namespace, TWO_UPLINKS};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// Waits until the addresses are in the kernel's local table. For IPv6 the kernel adds them in the background.
fn await_local(namespace: &Namespace, addresses: &[(&str, Option<u32>)]) {
    let give_up = Instant::now() + Duration::from_secs(5);
    for (address, interface_index) in addresses {
        let query = Query {
            interface_index: *interface_index,
            ..Query::to(ip(address))
        };
        while lookup(namespace, query).is_ok_and(|route| route.kind != RouteKind::Local) {
            assert!(Instant::now() < give_up, "{address} does not become local");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lookup(namespace: &Namespace, query: Query) -> Result<Route, Cause> {
    namespace.run(move || Client::open()?.lookup(&query))
}

/// A namespace with two uplinks whose addresses are ready.
fn two_uplinks() -> Namespace {
    let namespace = Namespace::new();
    namespace.ip(TWO_UPLINKS);
    await_local(
        &namespace,
        &[("2001:db8:1::1", None), ("2001:db8:2::1", None)],
    );
    namespace
}

#[test]
fn the_main_table_gives_source_gateway_and_metrics() {
    let namespace = two_uplinks();
    let destination = ip("203.0.113.9");
    let expected = Route {
        destination,
        kind: RouteKind::Unicast,
        source: ip("192.0.2.1"),
        interface_index: namespace.index("one"),
        gateway: Some(ip("192.0.2.254")),
        mtu: Some(1400),
        hop_limit: Some(9),
        table: 254,
    };
    assert_eq!(lookup(&namespace, Query::to(destination)), Ok(expected));

    let route = lookup(&namespace, Query::to(ip("2001:db8:ffff::9"))).expect("IPv6 route");
    assert_eq!(route.source, ip("2001:db8:1::1"));
    assert_eq!(route.next_hop(), ip("2001:db8:1::fe"));
}

#[test]
fn a_policy_rule_picks_another_source_and_table() {
    let namespace = two_uplinks();
    namespace.ip("rule add to 203.0.113.0/24 lookup 1234
        -6 rule add to 2001:db8:ffff::/48 lookup 1234");
    for (destination, source, gateway) in [
        ("203.0.113.9", "198.51.100.1", "198.51.100.254"),
        ("2001:db8:ffff::9", "2001:db8:2::1", "2001:db8:2::fe"),
    ] {
        let route = lookup(&namespace, Query::to(ip(destination))).expect(destination);
        assert_eq!(route.source, ip(source));
        assert_eq!(route.gateway, Some(ip(gateway)));
        assert_eq!(route.table, 1234);
        assert_eq!(route.interface_index, namespace.index("two"));
    }
}

#[test]
fn rules_on_the_source_and_the_user_apply_as_for_connect() {
    let namespace = two_uplinks();
    let destination = Query::to(ip("203.0.113.9"));
    namespace.ip("rule add from 198.51.100.1 lookup 1234");
    let route =
        lookup(&namespace, destination.with_source(ip("198.51.100.1"))).expect("pinned source");
    assert_eq!((route.table, route.source), (1234, ip("198.51.100.1")));

    namespace.ip("rule add uidrange 0-0 lookup 1234");
    let route = lookup(&namespace, destination).expect("by user");
    assert_eq!(route.table, 1234, "the rule for root applies to root");
}

#[test]
fn the_interface_can_be_given() {
    let namespace = two_uplinks();
    namespace.ip("route add 203.0.113.0/24 dev two metric 50\nroute add 203.0.113.0/24 dev one");
    let two = namespace.index("two");
    let route = lookup(&namespace, Query::to(ip("203.0.113.9")).on_interface(two)).expect("on two");
    assert_eq!(
        (route.interface_index, route.source),
        (two, ip("198.51.100.1"))
    );
}

#[test]
fn routes_that_lead_nowhere_have_their_own_causes() {
    let namespace = two_uplinks();
    namespace.ip("route add unreachable 203.0.113.1
        route add blackhole 203.0.113.2
        route add prohibit 203.0.113.3
        route add unreachable 2001:db8:ffff::1
        route add blackhole 2001:db8:ffff::2
        route add prohibit 2001:db8:ffff::3");
    for prefix in ["203.0.113.", "2001:db8:ffff::"] {
        let to = |last: u8| Query::to(ip(&format!("{prefix}{last}")));
        for last in [1, 2] {
            assert_eq!(
                lookup(&namespace, to(last)),
                Err(Cause::NetworkUnreachable),
                "{prefix}{last}"
            );
        }
        let prohibited = lookup(&namespace, to(3));
        assert!(
            matches!(prohibited, Err(Cause::Os { errno: 13, .. })),
            "{prohibited:?}"
        );
    }
}

#[test]
fn without_any_route_the_network_is_unreachable() {
    let namespace = Namespace::new();
    for destination in ["203.0.113.9", "2001:db8:ffff::9"] {
        let outcome = lookup(&namespace, Query::to(ip(destination)));
        assert_eq!(outcome, Err(Cause::NetworkUnreachable), "{destination}");
    }
}

#[test]
fn an_interface_without_addresses_offers_no_source() {
    let namespace = Namespace::new();
    namespace.ip("link add bare type veth peer name bare-end\nlink set bare-end up\nlink set bare up\nroute add 203.0.113.0/24 dev bare");
    let outcome = lookup(&namespace, Query::to(ip("203.0.113.9")));
    assert_eq!(outcome, Err(Cause::AddressNotAvailable));
}

#[test]
fn own_addresses_are_local_and_need_no_neighbour() {
    let namespace = two_uplinks();
    for own in ["198.51.100.1", "2001:db8:2::1"] {
        let route = lookup(&namespace, Query::to(ip(own))).expect(own);
        assert_eq!((route.kind, route.source), (RouteKind::Local, ip(own)));
        assert!(!route.needs_neighbour());
    }
}

#[test]
fn link_local_destinations_stay_on_their_link() {
    let namespace = two_uplinks();
    namespace.ip("addr add fe80::1/64 dev one nodad\naddr add fe80::2/64 dev two nodad");
    let (one, two) = (namespace.index("one"), namespace.index("two"));
    await_local(
        &namespace,
        &[("fe80::1", Some(one)), ("fe80::2", Some(two))],
    );
    for (name, source) in [("one", "fe80::1"), ("two", "fe80::2")] {
        let index = namespace.index(name);
        let query = Query::to(ip("fe80::99")).on_interface(index);
        let route = lookup(&namespace, query).expect(name);
        assert_eq!(route.interface_index, index);
        let pinned = lookup(&namespace, query.with_source(ip(source))).expect(name);
        assert_eq!(pinned.source, ip(source));
    }
    let other_link = Query::to(ip("fe80::99"))
        .on_interface(one)
        .with_source(ip("fe80::2"));
    assert_eq!(
        lookup(&namespace, other_link),
        Err(Cause::AddressNotAvailable)
    );
}

#[test]
fn an_ipv4_route_through_an_ipv6_router_is_understood() {
    let namespace = two_uplinks();
    namespace.ip("route add 203.0.113.0/24 via inet6 fe80::fe dev one");
    let route = lookup(&namespace, Query::to(ip("203.0.113.9"))).expect("route");
    assert_eq!(route.next_hop(), ip("fe80::fe"));
    assert_eq!(route.source, ip("192.0.2.1"));
}

#[test]
fn multicast_and_broadcast_are_distinguished() {
    let namespace = two_uplinks();
    let kind = |to: &str| lookup(&namespace, Query::to(ip(to))).expect(to).kind;
    assert_eq!(kind("239.1.2.3"), RouteKind::Multicast);
    assert_eq!(kind("192.0.2.255"), RouteKind::Broadcast);
    let group = Query::to(ip("ff02::1234")).on_interface(namespace.index("one"));
    assert_eq!(
        lookup(&namespace, group).expect("group").kind,
        RouteKind::Multicast
    );
}
