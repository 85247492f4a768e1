//! Routes that every machine has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6};

use portolan_addrinfo::route::Client;
use portolan_addrinfo::{Query, RouteKind, lookup};
use portolan_provider::Cause;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[test]
fn loopback_leads_to_itself_and_needs_no_neighbour() {
    let route = lookup(&Query::to(LOCALHOST)).expect("loopback is up");
    assert_eq!((route.kind, route.source), (RouteKind::Loopback, LOCALHOST));
    assert_eq!(route.next_hop(), LOCALHOST);
    assert!(!route.needs_neighbour());
    assert!(route.to_string().starts_with("127.0.0.1 if "), "{route}");
}

#[test]
fn the_whole_loopback_network_is_loopback() {
    let route = lookup(&Query::to([127, 1, 2, 3].into()).with_source([127, 9, 9, 9].into()));
    let route = route.expect("loopback is up");
    assert_eq!(route.kind, RouteKind::Loopback);
    assert_eq!(
        route.source,
        IpAddr::from([127, 9, 9, 9]),
        "the pinned source is kept"
    );
}

#[test]
fn ipv6_loopback_is_reached_exactly_where_the_machine_has_it() {
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let has_loopback = table.contains("00000000000000000000000000000001");
    let outcome = lookup(&Query::to(Ipv6Addr::LOCALHOST.into())).map(|route| route.kind);
    if has_loopback {
        assert_eq!(outcome, Ok(RouteKind::Loopback));
    } else {
        assert!(outcome.is_err(), "{outcome:?}");
    }
}

#[test]
fn a_source_of_another_machine_is_not_available() {
    // TEST-NET-3 (RFC 5737) and the documentation prefix (RFC 3849) belong to no host.
    let foreign_v6: Ipv6Addr = "2001:db8::77".parse().expect("address");
    for query in [
        Query::to(LOCALHOST).with_source([203, 0, 113, 77].into()),
        Query::to(Ipv6Addr::LOCALHOST.into()).with_source(foreign_v6.into()),
    ] {
        assert_eq!(lookup(&query), Err(Cause::AddressNotAvailable), "{query:?}");
    }
}

#[test]
fn a_missing_interface_is_an_error() {
    let outcome = lookup(&Query::to([192, 0, 2, 1].into()).on_interface(i32::MAX as u32));
    assert!(
        matches!(outcome, Err(Cause::NoDevice { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_link_local_address_without_its_zone_is_explained() {
    let address: Ipv6Addr = "fe80::1".parse().expect("address");
    let unscoped = Query::from(std::net::SocketAddr::from((address, 1)));
    let outcome = lookup(&unscoped).expect_err("no zone");
    assert!(outcome.to_string().contains("%eth0"), "{outcome}");
    let scoped = Query::from(std::net::SocketAddr::V6(SocketAddrV6::new(
        address, 1, 0, 7,
    )));
    assert_eq!(scoped.interface_index, Some(7));
}

#[test]
fn each_thread_asks_on_its_own_socket() {
    std::thread::scope(|scope| {
        for last in 1..=8 {
            scope.spawn(move || {
                for _ in 0..200 {
                    let destination = IpAddr::from([127, 0, 0, last]);
                    let route = lookup(&Query::to(destination)).expect("loopback is up");
                    assert_eq!(route.destination, destination);
                }
            });
        }
    });
}

#[test]
fn a_client_serves_one_question_after_another() {
    let mut client = Client::open().expect("client");
    assert!(client.lookup(&Query::to([0, 0, 0, 0].into())).is_err());
    for _ in 0..100 {
        assert!(client.lookup(&Query::to(LOCALHOST)).is_ok());
        assert!(
            client
                .lookup(&Query::to(LOCALHOST).with_source([203, 0, 113, 77].into()))
                .is_err()
        );
    }
}
