//! RDMA_CM_EVENT_ROUTE_ERROR: route resolution (rdma_resolve_route) failed.

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::provider::error::errno::ENETUNREACH;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::{TCP, next};
use crate::support::ip_batch;
use crate::{addr, assert_silent, hear, on_interfaces};

/// A neighbour without discovery, and a network behind it.
const INTERFACES: &str = "link add troute type veth peer name proute\n\
    addr add 10.9.1.1/24 dev troute\n\
    link set troute up\n\
    link set proute up\n\
    neigh replace 10.9.1.2 lladdr 02:00:00:00:02:02 dev troute nud permanent\n\
    route add 10.8.0.0/16 via 10.9.1.2\n";

const REMOTE: &str = "10.8.0.1:7471";

#[test]
fn route_error_comes_when_the_route_vanished_since_the_address_was_resolved() {
    on_interfaces(INTERFACES, || {
        let channel = EventChannel::open_on(own_provider()).unwrap();
        let id = CmId::new(&channel).unwrap();
        id.resolve_addr(None, addr(REMOTE), PATIENCE).unwrap();
        hear(&channel, &id, EventType::AddrResolved, 0);

        ip_batch("route del 10.8.0.0/16");
        id.resolve_route(PATIENCE).unwrap();
        let event = next(&channel, EventType::RouteError);
        crate::assert_bare(&event, &id, EventType::RouteError, -ENETUNREACH);
        let error = event.failure().unwrap();
        assert_eq!(
            (error.step, error.cause),
            (Step::ResolveRoute, Cause::NetworkUnreachable)
        );
        drop(event);
        assert!(id.paths().unwrap().is_empty(), "no route, no path");
        assert_silent(&channel);

        // The address is still resolved, and another attempt may succeed.
        ip_batch("route add 10.8.0.0/16 via 10.9.1.2");
        id.resolve_route(PATIENCE).unwrap();
        hear(&channel, &id, EventType::RouteResolved, 0);
        assert_eq!(id.paths().unwrap().len(), 1);
    });
}

#[test]
fn route_error_comes_when_the_source_address_vanished_since_it_was_resolved() {
    on_interfaces(INTERFACES, || {
        let channel = EventChannel::open_on(own_provider()).unwrap();
        let id = CmId::new(&channel).unwrap();
        id.resolve_addr(None, addr(REMOTE), PATIENCE).unwrap();
        hear(&channel, &id, EventType::AddrResolved, 0);
        ip_batch("addr del 10.9.1.1/24 dev troute");
        id.resolve_route(PATIENCE).unwrap();
        let event = next(&channel, EventType::RouteError);
        assert_eq!(event.id().number(), id.number());
        assert!(event.status() < 0, "a negative errno: {event:?}");
    });
}

#[test]
fn a_synchronous_id_gets_route_error_as_the_error_of_its_call() {
    on_interfaces(INTERFACES, || {
        let id = CmId::synchronous(own_provider(), TCP, PATIENCE).unwrap();
        id.resolve_addr(None, addr(REMOTE), PATIENCE).unwrap();
        ip_batch("route del 10.8.0.0/16");
        let error = id.resolve_route(PATIENCE).unwrap_err();
        assert_eq!(
            (error.step, error.errno()),
            (Step::ResolveRoute, ENETUNREACH)
        );
        let last = id.last_event().unwrap();
        assert_eq!(last.event_type(), EventType::RouteError);
    });
}
