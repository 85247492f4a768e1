//! RDMA_CM_EVENT_ROUTE_RESOLVED: route resolution (rdma_resolve_route) completed successfully.

use portolan::cm::CmId;
use portolan::provider::cm::{EventType, IdOption};

use super::assert_bare;
use crate::harness::*;
use crate::low::*;

#[test]
fn route_resolved_comes_with_the_path_known_to_the_id() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    id.set_option(IdOption::Tos(0x20)).unwrap();
    id.set_option(IdOption::AckTimeout(15)).unwrap();
    let destination = "127.0.0.1:7471".parse().unwrap();
    id.resolve_addr(None, destination, PATIENCE).unwrap();
    next(&channel, EventType::AddrResolved);
    assert!(id.paths().unwrap().is_empty());
    id.resolve_route(PATIENCE).unwrap();
    let event = next(&channel, EventType::RouteResolved);
    assert_eq!(event.id().number(), id.number());
    assert_bare(&event, 0);

    let known = id.addresses().unwrap();
    let [path] = id.paths().unwrap()[..] else {
        panic!("one path");
    };
    assert_eq!((Some(path.sgid), Some(path.dgid)), (known.sgid, known.dgid));
    assert_eq!(path.traffic_class, 0x20, "the type of service that was set");
    assert_eq!(
        path.packet_lifetime, 14,
        "the ACK timeout that was set, less one"
    );
    let port = u32::from(known.local.unwrap().port());
    assert_eq!(path.flow_label, (port * 31 + 7471) & 0xf_ffff);
}
