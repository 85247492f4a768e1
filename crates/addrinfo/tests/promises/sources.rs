//! Addresses, their lengths and names: `ai_src_addr`, `ai_dst_addr`, and results without a node.

use portolan_addrinfo::{Decision, Eai, Family, Hints, PathData};
use portolan_provider::Address;
use portolan_wire::sa::PathRecord;

use crate::script::*;

#[test]
fn the_source_is_what_routing_chooses_on_a_device_that_has_it() {
    let script = Script::ethernet();
    let results = script.found(HOST, &Hints::new());
    assert_eq!(
        sources(&results),
        ["[fd00::1]:0", "10.0.0.1:0", "10.0.0.1:0"]
    );
    for result in &results {
        let decisions = result.explain.decisions();
        let device = decisions.iter().find_map(|decision| match decision {
            Decision::Device(device) => Some(device),
            _ => None,
        });
        let source = result.src_addr.unwrap();
        assert_eq!(device.unwrap().gid, source.gid());
    }
}

#[test]
fn the_source_towards_an_ipv4_mapped_address_is_mapped_too() {
    let script = Script::ethernet();
    let results = script.found("::ffff:10.0.0.2", &Hints::new());
    assert_eq!(destinations(&results), ["[::ffff:10.0.0.2]:7471"]);
    assert_eq!(sources(&results), ["[::ffff:10.0.0.1]:0"]);
    assert_eq!(results[0].family, Family::Inet6);
    let given = Hints::new().src_addr(inet("[::ffff:10.0.0.9]:5").unwrap());
    let results = script.found("::ffff:10.0.0.2", &given);
    assert_eq!(sources(&results), ["[::ffff:10.0.0.9]:5"]);
}

#[test]
fn without_a_route_or_a_device_there_is_no_source() {
    let script = Script::ethernet();
    assert_eq!(sources(&script.found(UNREACHABLE, &Hints::new())), ["-"]);
    let mut bare = Script::ethernet();
    bare.devices = None;
    let results = bare.found("192.0.2.1", &Hints::new());
    assert_eq!(sources(&results), ["-"]);
    assert_eq!(destinations(&results), ["192.0.2.1:7471"]);
}

#[test]
fn addresses_have_the_length_of_their_family() {
    let script = Script::ethernet();
    for (node, family, length) in [
        ("192.0.2.1", Family::Inet, 16),
        ("2001:db8::1", Family::Inet6, 28),
        ("2001:db8::1", Family::Ib, 48),
    ] {
        let result = &script.found(node, &Hints::new().family(family))[0];
        for address in [result.src_addr, result.dst_addr] {
            assert_eq!(address.unwrap().to_sockaddr().len(), length);
        }
    }
}

#[test]
fn canonical_names_are_those_of_the_name_or_else_the_addresses() {
    let script = Script::ethernet();
    for result in script.found(HOST, &Hints::new()) {
        assert_eq!(result.dst_canonname.as_deref(), Some(CANONICAL));
        let source = result.src_addr.unwrap().inet().unwrap().ip().to_string();
        assert_eq!(result.src_canonname, Some(source));
    }
    let listening = &script.found(HOST, &Hints::new().passive())[0];
    assert_eq!(listening.src_canonname.as_deref(), Some(CANONICAL));
    assert_eq!(listening.dst_canonname, None);
    let numeric = &script.found("192.0.2.1", &Hints::new())[0];
    assert_eq!(numeric.dst_canonname.as_deref(), Some("192.0.2.1"));
}

#[test]
fn without_a_node_the_source_of_the_hints_is_what_there_is() {
    let script = Script::ethernet();
    let hints = Hints::new().src_addr(inet("10.0.0.9:5").unwrap());
    let passive = script
        .resolve(None, None, &hints.clone().passive())
        .unwrap();
    assert_eq!(sources(&passive), ["10.0.0.9:5"]);
    let active = script.resolve(None, None, &hints).unwrap();
    assert_eq!(sources(&active), ["10.0.0.9:5"]);
    assert_eq!(destinations(&active), ["-"]);
}

#[test]
fn without_a_node_the_destination_of_the_hints_is_resolved_with_its_source() {
    let script = Script::ethernet();
    let hints = Hints::new().dst_addr(inet("192.0.2.1:7").unwrap());
    let results = script.resolve(None, None, &hints).unwrap();
    assert_eq!(destinations(&results), ["192.0.2.1:7"]);
    assert_eq!(sources(&results), ["10.0.0.1:0"]);
    // A service sets another port.
    let served = script.resolve(None, Some("7471"), &hints).unwrap();
    assert_eq!(destinations(&served), ["192.0.2.1:7471"]);
}

#[test]
fn without_a_node_the_route_of_the_hints_has_both_gids() {
    let script = Script::ethernet();
    let (sgid, dgid) = (ip("fd00::1"), ip("fd00::2"));
    let gid = |ip| Address::Inet(std::net::SocketAddr::new(ip, 0)).gid();
    let record = PathRecord {
        sgid: gid(sgid),
        dgid: gid(dgid),
        ..PathRecord::default()
    };
    let hints = Hints::new().route([PathData::new(0, record)]);
    let results = script.resolve(None, None, &hints).unwrap();
    let result = &results[0];
    assert_eq!(result.family, Family::Ib);
    assert_eq!(result.dst_addr.map(|to| to.gid()), Some(gid(dgid)));
    assert_eq!(result.src_addr.map(|from| from.gid()), Some(gid(sgid)));
}

#[test]
fn gids_of_a_route_in_two_families_pin_no_source() {
    let script = Script::ethernet();
    let gid = |text| Address::Inet(std::net::SocketAddr::new(ip(text), 0)).gid();
    let path = |from, to| {
        let record = PathRecord {
            sgid: gid(from),
            dgid: gid(to),
            ..PathRecord::default()
        };
        [PathData::new(0, record)]
    };
    let hints = Hints::new().family(Family::Inet6);
    let mixed = hints.clone().route(path("10.0.0.9", "fd00::2"));
    let results = script.resolve(None, None, &mixed).unwrap();
    assert_eq!(destinations(&results), ["[fd00::2]:0"]);
    // Routing chooses the source, in the destination's family.
    assert_eq!(sources(&results), ["[fd00::1]:0"]);
    let alike = hints.clone().route(path("fd00::9", "fd00::2"));
    let results = script.resolve(None, None, &alike).unwrap();
    assert_eq!(sources(&results), ["[fd00::9]:0"]);
    // A destination of another family than the requested one is not used.
    let other = hints.route(path("10.0.0.9", "10.0.0.2"));
    let refused = script.resolve(None, None, &other).unwrap_err();
    assert_eq!(refused.code(), Eai::AddrFamily);
}

#[test]
fn this_machine_has_no_infiniband_loopback_address() {
    let script = Script::ethernet();
    let hints = Hints::new().family(Family::Ib);
    let refused = script.resolve(None, Some("7471"), &hints).unwrap_err();
    assert_eq!(refused.code(), Eai::AddrFamily);
    // The passive side has the wildcard address.
    let passive = script.resolve(None, Some("7471"), &hints.passive());
    assert_eq!(passive.unwrap()[0].family, Family::Ib);
}

#[test]
fn a_source_that_is_given_stays_and_must_fit_the_destination() {
    let script = Script::ethernet();
    let hints = Hints::new().src_addr(inet("10.0.0.9:77").unwrap());
    let results = script.found(HOST, &hints);
    assert_eq!(sources(&results), ["10.0.0.9:77", "10.0.0.9:77"]);
    assert_eq!(destinations(&results), ["10.0.0.2:7471", "10.0.0.3:7471"]);
    let other = script
        .resolve(Some("2001:db8::1"), None, &hints)
        .unwrap_err();
    assert_eq!(other.code(), Eai::AddrFamily);
}

#[test]
fn of_a_wildcard_source_only_the_port_stays() {
    let script = Script::ethernet();
    let hints = Hints::new().src_addr(inet("[::]:77").unwrap());
    let results = script.found(HOST_V6, &hints);
    assert_eq!(sources(&results), ["[fd00::1]:77", "[fd00::1]:77"]);
    // The resolver's order stays, as routing chose the sources. By a given source the order is another.
    let in_order = ["[2001:db8::2]:7471", "[fd00::2]:7471"];
    assert_eq!(destinations(&results), in_order);
    let given = Hints::new().src_addr(inet("[fd00::1]:77").unwrap());
    let results = script.found(HOST_V6, &given);
    assert_eq!(
        destinations(&results),
        ["[fd00::2]:7471", "[2001:db8::2]:7471"]
    );
    // Without routes no source is chosen in its place.
    let results = script.found(HOST_V6, &hints.clone().no_route());
    assert_eq!(sources(&results), ["[::]:77", "[::]:77"]);
    let mut bare = Script::ethernet();
    bare.devices = None;
    assert_eq!(sources(&bare.found(HOST_V6, &hints)), ["-", "-"]);
    assert_eq!(
        sources(&bare.found(HOST_V6, &given)),
        ["[fd00::1]:77", "[fd00::1]:77"]
    );
}
