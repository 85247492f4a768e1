//! The sections NAME, ARGUMENTS and DESCRIPTION, and the sample program.

use std::net::ToSocketAddrs;

use portolan_addrinfo::{Family, Flags, Hints, QpType, get_addrinfo, get_addrinfo_with};
use portolan_provider::Address;
use portolan_wire::addr::PortSpace;

use crate::script::*;

#[test]
fn addresses_of_ipv4_ipv6_and_infiniband_are_resolved_by_the_same_call() {
    let script = Script::ethernet();
    for (node, family, expected) in [
        ("192.0.2.7", Family::Inet, "192.0.2.7:7471"),
        ("2001:db8::7", Family::Inet6, "[2001:db8::7]:7471"),
        (
            "2001:db8::7",
            Family::Ib,
            "2001:db8::7,pkey=0xffff,sid=0x0000000001061d2f",
        ),
    ] {
        let results = script.found(node, &Hints::new().family(family));
        assert_eq!(destinations(&results), [expected]);
        assert_eq!(results[0].family, family);
        // The source has the family too.
        assert_eq!(results[0].src_addr.as_ref().map(Family::of), Some(family));
    }
}

#[test]
fn the_node_may_be_a_name_or_a_numeric_address_of_either_family() {
    let script = Script::ethernet();
    for (node, expected) in [
        (HOST_V4, "10.0.0.2:7471"),
        ("192.0.2.1", "192.0.2.1:7471"),
        ("2001:db8::1", "[2001:db8::1]:7471"),
    ] {
        assert_eq!(destinations(&script.found(node, &Hints::new())), [expected]);
    }
}

#[test]
fn without_a_node_the_results_are_for_this_machine() {
    let script = Script::ethernet();
    let results = script.resolve(None, Some("7471"), &Hints::new()).unwrap();
    for result in &results {
        let destination = result.dst_addr.unwrap();
        assert!(destination.is_loopback() && destination.port() == PORT);
    }
    assert!(!results.is_empty());
}

#[test]
fn the_service_may_be_a_name_or_a_port_number() {
    let script = Script::ethernet();
    for service in [SERVICE, "7471"] {
        let results = script.resolve(Some(HOST_V4), Some(service), &Hints::new());
        assert_eq!(destinations(&results.unwrap()), ["10.0.0.2:7471"]);
    }
    let without = script.resolve(Some(HOST_V4), None, &Hints::new()).unwrap();
    assert_eq!(destinations(&without), ["10.0.0.2:0"]);
}

#[test]
fn hints_decide_the_kind_of_service_of_every_result() {
    use PortSpace as P;
    use QpType as Q;
    let script = Script::ethernet();
    for (qp_type, port_space) in [
        (Q::Rc, P::Tcp),
        (Q::Uc, P::Tcp),
        (Q::Ud, P::Udp),
        (Q::Ud, P::Ipoib),
        (Q::Rc, P::Ib),
        (Q::Ud, P::Ib),
    ] {
        let hints = Hints::new().qp_type(qp_type).port_space(port_space);
        let results = script.found(HOST, &hints);
        assert_eq!(results.len(), 3);
        for result in results {
            assert_eq!((result.qp_type, result.port_space), (qp_type, port_space));
        }
    }
    // The queue pair type determines the port space, and vice versa.
    let ud = script.found(HOST_V4, &Hints::new().qp_type(Q::Ud));
    assert_eq!(ud[0].port_space, P::Udp);
    let udp = script.found(HOST_V4, &Hints::new().port_space(P::Udp));
    assert_eq!(udp[0].qp_type, Q::Ud);
}

#[test]
fn the_results_are_a_list_of_every_address_in_the_resolvers_order() {
    let script = Script::ethernet();
    let results = script.found(HOST, &Hints::new());
    let expected = ["[fd00::2]:7471", "10.0.0.2:7471", "10.0.0.3:7471"];
    assert_eq!(destinations(&results), expected);
    // The iterator walks the list and then ends.
    let mut list = results.iter();
    assert_eq!(list.by_ref().take(3).count(), 3);
    assert!(list.next().is_none());
}

#[test]
fn a_destination_that_cannot_be_reached_comes_last() {
    let script = Script::ethernet();
    let hints = Hints::new().dst_addr(inet("203.0.113.9:1").unwrap());
    let alone = script.resolve(None, None, &hints).unwrap();
    assert_eq!((alone.len(), alone[0].src_addr), (1, None));
}

#[test]
fn the_answers_are_those_of_getaddrinfo() {
    let theirs: Vec<String> = "localhost:7471"
        .to_socket_addrs()
        .unwrap()
        .map(|address| address.to_string())
        .collect();
    let ours = get_addrinfo(Some("localhost"), Some("7471"), None).unwrap();
    let mut ours = destinations(&ours);
    let mut theirs = theirs;
    ours.sort();
    theirs.sort();
    theirs.dedup();
    assert_eq!(ours, theirs);
}

#[test]
fn success_has_at_least_one_result() {
    let script = Script::ethernet();
    let source = inet("10.0.0.9:1").unwrap();
    let questions = [
        (Some(HOST), None, Hints::new()),
        (None, Some("0"), Hints::new()),
        (None, Some("1"), Hints::new().passive()),
        (None, None, Hints::new().src_addr(source)),
        (Some("::1"), Some("65535"), Hints::new().no_route()),
    ];
    for (node, service, hints) in questions {
        assert!(!script.resolve(node, service, &hints).unwrap().is_empty());
    }
    assert!(
        !get_addrinfo_with(&script, Some(HOST), None, None)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_sample_program_gets_addresses_of_both_families_for_reliable_connections() {
    let script = Script::ethernet();
    let hints = Hints {
        family: None,
        qp_type: Some(QpType::Rc),
        port_space: Some(PortSpace::Tcp),
        ..Hints::default()
    };
    assert_eq!(hints.flags, Flags::empty());
    let results = script.found(HOST, &hints);
    let families: Vec<_> = results.iter().map(|result| result.family).collect();
    assert_eq!(families, [Family::Inet6, Family::Inet, Family::Inet]);
    for result in &results {
        assert_eq!(
            (result.qp_type, result.port_space),
            (QpType::Rc, PortSpace::Tcp)
        );
        assert!(matches!(result.dst_addr, Some(Address::Inet(at)) if at.port() == PORT));
        assert!(result.src_addr.is_some());
    }
}
