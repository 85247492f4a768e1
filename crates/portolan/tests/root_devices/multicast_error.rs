//! RDMA_CM_EVENT_MULTICAST_ERROR on a group that had already been joined: it is no longer accessible
//! and should be rejoined, if desired.

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{EventType, JoinKind};
use portolan::provider::error::errno::ENODEV;
use portolan::software::Usage;

use crate::harness::*;
use crate::low::{UDP, next};
use crate::support::ip_batch;
use crate::{addr, assert_silent, hear, on_interfaces};

const INTERFACES: &str = "link add tgroup type veth peer name pgroup\n\
    addr add 10.9.1.1/24 dev tgroup\n\
    link set tgroup up\n\
    link set pgroup up\n";

#[test]
fn multicast_error_comes_for_a_joined_group_whose_interface_is_removed_and_it_may_be_rejoined() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let channel = EventChannel::open_on(provider.clone()).unwrap();
        let open = || {
            let id = CmId::with_service(&channel, UDP).unwrap();
            id.bind(addr("10.9.1.1:0")).unwrap();
            id
        };
        let group = "239.9.1.1".parse().unwrap();
        let (member, sender) = (open(), open());
        member
            .join_multicast(group, JoinKind::FullMember, 7)
            .unwrap();
        drop(next(&channel, EventType::MulticastJoin));
        sender
            .join_multicast(group, JoinKind::SendOnlyFullMember, 8)
            .unwrap();
        drop(next(&channel, EventType::MulticastJoin));

        ip_batch("link del tgroup");
        let mut contexts = Vec::new();
        for _ in 0..2 {
            let event = next(&channel, EventType::MulticastError);
            assert_eq!(event.status(), -ENODEV);
            let membership = event.membership().unwrap();
            assert_eq!(membership.group(), group);
            contexts.push(membership.context());
            let id = event.id().clone();
            drop(event);
            hear(&channel, &id, EventType::DeviceRemoval, 0);
        }
        contexts.sort_unstable();
        assert_eq!(contexts, [7, 8]);
        assert_silent(&channel);
        member.leave_multicast(group, PATIENCE).unwrap();
        drop((member, sender));

        ip_batch(INTERFACES);
        let again = open();
        again
            .join_multicast(group, JoinKind::FullMember, 9)
            .unwrap();
        let event = next(&channel, EventType::MulticastJoin);
        assert_eq!(event.membership().unwrap().context(), 9);
        drop((event, again));
        assert_eq!(provider.usage(), Usage::default());
    });
}
