//! rdma_resolve_addrinfo(3) accepts the same arguments as rdma_getaddrinfo(3) and gives the same results.

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::resolve::{AddrInfo, Flags, Hints, QpType, get_addrinfo};
use portolan::wire::addr::PortSpace;

use crate::low::*;

/// The result of an id's look-up, reported by an event.
fn found(
    channel: &EventChannel,
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> Vec<AddrInfo> {
    let id = CmId::new(channel).unwrap();
    id.resolve_addrinfo(node, service, hints).unwrap();
    let event = next(channel, EventType::AddrinfoResolved);
    assert_eq!(event.id().number(), id.number());
    drop(event);
    id.query_addrinfo().unwrap()
}

/// All fields except the reasons, which may or may not name devices.
fn fields(results: Vec<AddrInfo>) -> Vec<AddrInfo> {
    let without = |mut result: AddrInfo| {
        result.explain = Default::default();
        result
    };
    results.into_iter().map(without).collect()
}

#[test]
fn an_id_finds_the_same_as_rdma_getaddrinfo_for_any_node_service_and_hints() {
    let channel = channel();
    let numeric = Hints::new().numeric_host();
    let datagrams = Hints::new().qp_type(QpType::Ud).port_space(PortSpace::Udp);
    let by_dns = Hints::new().flags(Flags::DNS);
    let cases = [
        ("a name", Some("localhost"), Some("7471"), None),
        (
            "a name by DNS",
            Some("localhost"),
            Some("7471"),
            Some(&by_dns),
        ),
        ("IPv4", Some("127.0.0.1"), Some("7471"), None),
        ("IPv6", Some("::1"), Some("7471"), Some(&numeric)),
        ("no service", Some("127.0.0.1"), None, None),
        ("no node", None, Some("7471"), None),
        (
            "a kind of service",
            Some("127.0.0.1"),
            Some("1"),
            Some(&datagrams),
        ),
    ];
    for (what, node, service, hints) in cases {
        let ours = found(&channel, node, service, hints);
        let theirs = get_addrinfo(node, service, hints).unwrap();
        assert_eq!(fields(ours), fields(theirs), "{what}");
    }
}

#[test]
fn hints_decide_the_kind_of_service_of_the_results() {
    let channel = channel();
    let hints = Hints::new()
        .qp_type(QpType::Ud)
        .port_space(PortSpace::Ipoib);
    for result in found(&channel, Some("localhost"), Some("9"), Some(&hints)) {
        let kind = (result.qp_type, result.port_space);
        assert_eq!(kind, (QpType::Ud, PortSpace::Ipoib));
    }
}
