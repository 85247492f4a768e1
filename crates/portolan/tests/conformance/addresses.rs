//! Ids, ports and addresses.

use std::net::SocketAddr;

use portolan::cm::CmId;
use portolan::provider::cm::EventType;
use portolan::{Cause, Step};

use crate::pair::*;

#[test]
fn port_zero_takes_a_free_port_that_the_address_shows() {
    let channel = channel();
    let ids = [0, 1].map(|_| CmId::new(&channel).unwrap());
    let ports = ids.each_ref().map(|id| {
        id.bind(SocketAddr::new(local_ip(), 0)).unwrap();
        id.addresses().unwrap().local.unwrap().port()
    });
    assert!(
        ports[0] != 0 && ports[1] != 0 && ports[0] != ports[1],
        "{ports:?}"
    );
}

#[test]
fn an_id_bound_to_loopback_has_no_device_until_it_is_resolved() {
    let channel = channel();
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let id = CmId::new(&channel).unwrap();
        id.bind(local.parse().unwrap()).unwrap();
        let known = id.addresses().unwrap();
        assert_eq!((known.device_index, known.port_num), (None, 0), "{local}");
        assert_ne!(known.local.unwrap().port(), 0);
        assert!(id.device().is_err());
    }
}

#[test]
fn an_id_has_the_device_that_serves_its_address() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    place(&channel, &id, local_ip());
    let (device, _) = provider().device_of(local_ip()).unwrap();
    assert_eq!(id.device().unwrap().name(), device.name());
    let known = id.addresses().unwrap();
    assert_eq!(known.device_index, Some(device.index()));
    assert_eq!(known.port_num, 1);
    let gids = device.gids(1).unwrap();
    assert!(gids.iter().any(|entry| Some(entry.gid) == known.sgid));
}

#[test]
fn a_port_in_use_cannot_be_bound_and_is_free_again_when_its_id_is_destroyed() {
    let channel = channel();
    let first = CmId::new(&channel).unwrap();
    first.bind(SocketAddr::new(local_ip(), 0)).unwrap();
    let address = first.addresses().unwrap().local.unwrap().inet().unwrap();
    let second = CmId::new(&channel).unwrap();
    let error = second.bind(address).unwrap_err();
    assert_eq!(error.step, Step::Bind);
    assert!(matches!(error.cause, Cause::AddressInUse { .. }), "{error}");
    first.destroy(PATIENCE).unwrap();
    second.bind(address).unwrap();
}

#[test]
fn a_port_that_was_released_is_not_given_to_the_next_id_that_takes_any() {
    let channel = channel();
    // Programs look for a free port like this, and then bind it.
    let port = || {
        let id = CmId::new(&channel).unwrap();
        id.bind(SocketAddr::new(local_ip(), 0)).unwrap();
        let address = id.addresses().unwrap().local.unwrap().inet().unwrap();
        id.destroy(PATIENCE).unwrap();
        address.port()
    };
    let ports: Vec<u16> = (0..3).map(|_| port()).collect();
    assert!(ports.windows(2).any(|pair| pair[0] != pair[1]), "{ports:?}");
}

#[test]
fn an_address_of_no_device_cannot_be_bound() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    // From the documentation range, which belongs to no host (RFC 5737).
    let error = id.bind("192.0.2.77:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.step, Step::Bind);
}

#[test]
fn resolving_gives_both_addresses_both_gids_and_one_path() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    let known = id.addresses().unwrap();
    assert_eq!(known.remote, Some(passive.address.into()));
    let local = known.local.unwrap();
    assert_eq!(known.sgid, Some(local.gid()));
    assert_ne!(local.port(), 0);
    let paths = id.paths().unwrap();
    assert_eq!(paths.len(), 1);
    assert_eq!(
        (Some(paths[0].sgid), Some(paths[0].dgid)),
        (known.sgid, known.dgid)
    );
}

#[test]
fn commands_out_of_order_are_errors_that_leave_the_id_usable() {
    let passive = Passive::listen();
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    assert!(id.resolve_route(PATIENCE).is_err());
    assert!(id.connect(&param(b"")).is_err());
    assert!(id.accept(&param(b"")).is_err());
    assert!(id.disconnect().is_err());
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    next(&channel, EventType::AddrResolved);
    assert!(id.listen(1).is_err());
    id.resolve_route(PATIENCE).unwrap();
    next(&channel, EventType::RouteResolved);
}
