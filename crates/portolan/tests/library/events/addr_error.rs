//! RDMA_CM_EVENT_ADDR_ERROR: address resolution (rdma_resolve_addr) failed.
//!
//! Hosts that do not answer on their link are in the tests with their own network.

use portolan::cm::CmId;
use portolan::provider::Address;
use portolan::provider::cm::EventType;
use portolan::resolve::get_addrinfo;
use portolan::{Cause, Step};

use super::assert_bare;
use crate::harness::*;
use crate::low::*;

#[test]
fn addr_error_reports_a_missing_route_from_the_source_to_the_destination() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    // Packets with a loopback source do not leave the machine.
    let (source, destination) = ("[::1]:0".parse().unwrap(), "[2001:db8::1]:7471");
    id.resolve_addr(Some(source), destination.parse().unwrap(), PATIENCE)
        .unwrap();
    let event = next(&channel, EventType::AddrError);
    assert_eq!(event.id().number(), id.number());
    assert!(event.status() < 0, "a negative errno: {event:?}");
    assert_bare(&event, event.status());
    let error = event.failure().unwrap();
    assert_eq!(
        (error.step, error.errno()),
        (Step::ResolveAddress, -event.status())
    );
    drop(event);

    // The id is still bound and can be resolved to another address.
    id.resolve_addr(None, "[::1]:7471".parse().unwrap(), PATIENCE)
        .unwrap();
    next(&channel, EventType::AddrResolved);
}

#[test]
fn a_source_that_no_device_has_fails_in_the_call_and_leaves_the_id_unbound() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let (foreign, here) = ("192.0.2.1:0".parse().unwrap(), "127.0.0.1:7471");
    let error = id
        .resolve_addr(Some(foreign), here.parse().unwrap(), PATIENCE)
        .unwrap_err();
    let found = (error.step, error.cause.clone());
    assert_eq!(
        found,
        (Step::ResolveAddress, Cause::AddressNotAvailable),
        "{error}"
    );
    id.resolve_addr(None, here.parse().unwrap(), PATIENCE)
        .unwrap();
    next(&channel, EventType::AddrResolved);
}

#[test]
fn an_unbound_id_resolves_an_ipv4_mapped_destination() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let destination = "[::ffff:127.0.0.1]:7471".parse().unwrap();
    id.resolve_addr(None, destination, PATIENCE).unwrap();
    next(&channel, EventType::AddrResolved);
}

#[test]
fn an_ipv4_mapped_destination_resolves_from_the_source_of_its_lookup() {
    let found = get_addrinfo(Some("::ffff:127.0.0.1"), Some("7471"), None).unwrap();
    let inet = |address: Option<Address>| address.and_then(|address| address.inet()).unwrap();
    let (source, destination) = (inet(found[0].src_addr), inet(found[0].dst_addr));
    assert!(source.is_ipv6() && destination.is_ipv6());
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    id.resolve_addr(Some(source), destination, PATIENCE)
        .unwrap();
    next(&channel, EventType::AddrResolved);
}

#[test]
fn a_failure_to_start_is_an_error_of_the_call_without_an_event() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let group = "224.0.0.1:7471".parse().unwrap();
    let error = id.resolve_addr(None, group, PATIENCE).unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    assert!(channel.try_next_event().unwrap().is_none());
}
