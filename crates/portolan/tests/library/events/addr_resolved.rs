//! RDMA_CM_EVENT_ADDR_RESOLVED: address resolution (rdma_resolve_addr) completed successfully.

use portolan::cm::CmId;
use portolan::provider::cm::EventType;

use super::assert_bare;
use crate::harness::*;
use crate::low::*;

#[test]
fn addr_resolved_comes_with_both_addresses_device_and_gids_known_to_the_id() {
    for destination in ["127.0.0.1:7471", "[::1]:7471"] {
        let (channel, destination) = (channel(), destination.parse().unwrap());
        for service in [TCP, UDP] {
            let id = CmId::with_service(&channel, service).unwrap();
            id.resolve_addr(None, destination, PATIENCE).unwrap();
            let event = next(&channel, EventType::AddrResolved);
            assert_eq!(event.id().number(), id.number());
            assert_bare(&event, 0);

            let known = id.addresses().unwrap();
            let local = known.local.unwrap().inet().unwrap();
            assert_eq!(local.ip(), destination.ip(), "loopback is its own source");
            assert_ne!(local.port(), 0, "a free port was taken");
            assert_eq!(known.remote, Some(destination.into()));
            let gid = known.local.map(|local| local.gid());
            assert_eq!((known.sgid, known.dgid), (gid, gid));
            let device = id.device().unwrap();
            assert_eq!(
                (known.device_index, known.port_num),
                (Some(device.index()), 1)
            );
        }
    }
}
