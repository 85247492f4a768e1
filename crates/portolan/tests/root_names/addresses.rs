//! Names that resolve: every address, in order, with the source from the routing policy.

use std::net::{IpAddr, SocketAddr};

use portolan_addrinfo::{AddrInfo, Family, Hints};
use portolan_provider::Address;

use crate::{on_network, resolve};

fn ips(found: &[AddrInfo]) -> Vec<IpAddr> {
    let inet = |info: &AddrInfo| info.dst_addr.and_then(|addr| addr.inet());
    let addrs: Vec<SocketAddr> = found.iter().filter_map(inet).collect();
    assert!(addrs.iter().all(|addr| addr.port() == 7471));
    addrs.iter().map(SocketAddr::ip).collect()
}

fn source(info: &AddrInfo) -> Option<IpAddr> {
    Some(info.src_addr?.inet()?.ip())
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn a_name_gives_all_its_addresses_ipv6_first_each_from_the_uplink_of_the_policy() {
    on_network(|| {
        let found = resolve("many.lab.test", None).expect("found");
        let found_ips = ips(&found);
        let (six, four) = found_ips.split_at(2);
        assert!(six.iter().all(IpAddr::is_ipv6) && four.iter().all(IpAddr::is_ipv4));
        let mut sorted = found_ips.clone();
        sorted.sort_unstable();
        let expected = [
            "203.0.113.1",
            "203.0.113.2",
            "203.0.113.3",
            "2001:db8:ffff::1",
            "2001:db8:ffff::2",
        ];
        assert_eq!(sorted, expected.map(ip));
        for info in &found {
            let by_rule = match ips(std::slice::from_ref(info))[0] {
                IpAddr::V4(_) => "198.51.100.1",
                IpAddr::V6(_) => "2001:db8:2::1",
            };
            assert_eq!(source(info), Some(ip(by_rule)), "{}", info.explain);
            assert!(
                info.explain.to_string().contains("1234"),
                "{}",
                info.explain
            );
        }
        let outside = resolve("n7.lab.test", None).expect("found");
        assert_eq!(source(&outside[0]), Some(ip("192.0.2.1")));
    });
}

#[test]
fn aliases_lead_to_the_canonical_name() {
    on_network(|| {
        for name in ["many.lab.test", "second.lab.test", "alias.lab.test"] {
            let found = resolve(name, None).expect(name);
            assert_eq!(found.len(), 5, "{name}");
            let canonical = found[0].dst_canonname.as_deref();
            assert_eq!(canonical, Some("many.lab.test"), "{name}");
        }
    });
}

#[test]
fn names_in_the_hosts_file_resolve_without_a_server() {
    on_network(|| {
        let found = resolve("filed", None).expect("filed");
        assert_eq!(ips(&found), [ip("2001:db8:1::77"), ip("192.0.2.77")]);
        assert_eq!(found[0].dst_canonname.as_deref(), Some("filed.lab.test"));
        let four = resolve("filed", Some(&Hints::new().family(Family::Inet)));
        assert_eq!(ips(&four.expect("filed")), [ip("192.0.2.77")]);
    });
}

#[test]
fn without_routes_there_are_addresses_and_no_sources() {
    on_network(|| {
        let hints = Hints::new().no_route();
        let found = resolve("many.lab.test", Some(&hints)).expect("found");
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|info| info.src_addr.is_none()));
    });
}

#[test]
fn an_own_link_local_address_is_its_own_source_in_its_zone() {
    on_network(|| {
        let found = resolve("fe80::77%one", None).expect("found");
        let inet = |address: Option<Address>| address.and_then(|address| address.inet());
        let (source, destination) = (inet(found[0].src_addr), inet(found[0].dst_addr));
        let (source, destination) = (source.expect("a source"), destination.unwrap());
        assert_eq!(source.ip(), ip("fe80::77"));
        let (SocketAddr::V6(source), SocketAddr::V6(destination)) = (source, destination) else {
            panic!("{found:?}");
        };
        assert_ne!(source.scope_id(), 0);
        assert_eq!(source.scope_id(), destination.scope_id());
    });
}
