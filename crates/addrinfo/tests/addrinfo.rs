//! rdma_getaddrinfo(3) on this machine: its resolver, its routing tables, no RDMA device.

use std::net::SocketAddr;

use portolan_addrinfo::{AddrInfo, Eai, Family, Hints, QpType, get_addrinfo};
use portolan_provider::Address;
use portolan_wire::addr::PortSpace;

fn code(node: Option<&str>, service: Option<&str>, hints: Option<&Hints>) -> Eai {
    get_addrinfo(node, service, hints)
        .expect_err("refused")
        .code()
}

fn inet(text: &str) -> Option<Address> {
    Some(Address::Inet(text.parse().expect("address")))
}

fn destinations(results: &[AddrInfo]) -> Vec<SocketAddr> {
    let inet = |result: &AddrInfo| result.dst_addr.and_then(|address| address.inet());
    results.iter().filter_map(inet).collect()
}

#[test]
fn a_numeric_look_up_needs_no_rdma_device() {
    let results = get_addrinfo(Some("127.0.0.1"), Some("7471"), None).expect("numeric");
    let [result] = &results[..] else {
        panic!("one address: {results:?}")
    };
    assert_eq!(result.family, Family::Inet);
    assert_eq!(result.qp_type, QpType::Rc);
    assert_eq!(result.port_space, PortSpace::Tcp);
    assert_eq!(result.dst_addr, inet("127.0.0.1:7471"));
    assert_eq!(result.src_addr, inet("127.0.0.1:0"));
    assert!(result.route.is_empty() && result.connect.is_empty());
}

#[test]
fn a_name_gives_all_of_its_addresses_as_a_list() {
    let results = get_addrinfo(Some("localhost"), Some("7471"), None).expect("localhost");
    let addresses = destinations(&results);
    assert!(!addresses.is_empty());
    for address in addresses {
        assert!(address.ip().is_loopback() && address.port() == 7471);
    }
}

#[test]
fn without_node_service_and_hints_the_error_is_eai_noname() {
    assert_eq!(code(None, None, None), Eai::NoName);
    assert_eq!(code(None, None, Some(&Hints::new())), Eai::NoName);
}
