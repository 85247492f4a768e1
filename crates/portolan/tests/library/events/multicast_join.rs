//! RDMA_CM_EVENT_MULTICAST_JOIN: the multicast join operation (rdma_join_multicast) completed
//! successfully.

use portolan::Cause;
use portolan::cm::CmId;
use portolan::provider::address::ip_to_gid;
use portolan::provider::cm::{EventType, JoinKind};
use portolan::wire::addr::{QKey, Qpn};

use crate::harness::*;
use crate::low::*;

#[test]
fn multicast_join_gives_everything_needed_to_send_to_the_group() {
    let channel = channel();
    let id = on_loopback(&channel);
    let group = "239.1.2.3".parse().unwrap();
    let kind = JoinKind::SendOnlyFullMember;
    let joined = id.join_multicast(group, kind, 99).unwrap();
    assert_eq!(
        (joined.group(), joined.kind(), joined.context()),
        (group, kind, 99)
    );

    let event = next(&channel, EventType::MulticastJoin);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    let membership = event.membership().expect("an event of a group names it");
    assert_eq!((membership.group(), membership.context()), (group, 99));
    let ud = event.ud().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (Qpn::MULTICAST, QKey::RDMA_CM));
    assert_eq!(ud.ah_attr.dgid, ip_to_gid(group));
    assert_eq!((ud.ah_attr.hop_limit, ud.ah_attr.port_num), (64, 1));
    assert!(event.failure().is_none());
}

#[test]
fn a_group_of_another_address_family_is_refused() {
    let channel = channel();
    let groups = ["239.1.2.3", "ff0e::1:2:3"];
    for (here, group) in ["[::1]:7471", "127.0.0.1:7471"].into_iter().zip(groups) {
        let id = CmId::with_service(&channel, UDP).unwrap();
        id.resolve_addr(None, here.parse().unwrap(), PATIENCE)
            .unwrap();
        next(&channel, EventType::AddrResolved);
        let joined = id.join_multicast(group.parse().unwrap(), JoinKind::FullMember, 1);
        let error = joined.expect_err(group);
        assert!(
            matches!(error.cause, Cause::InvalidArgument { what: "group", .. }),
            "{error}"
        );
    }
}

#[test]
fn leaving_waits_until_the_memberships_events_are_acknowledged() {
    let channel = channel();
    let id = on_loopback(&channel);
    let group = "239.1.2.4".parse().unwrap();
    let kind = JoinKind::SendOnlyFullMember;
    id.join_multicast(group, kind, 0).unwrap();
    let held = next(&channel, EventType::MulticastJoin);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| id.leave_multicast(group, PATIENCE));
        std::thread::sleep(SHORT);
        assert!(!leaving.is_finished(), "the event is still held");
        drop(held);
        leaving.join().unwrap().unwrap();
    });
    let error = id.leave_multicast(group, PATIENCE).unwrap_err();
    assert_eq!(
        (error.cause.clone(), error.errno()),
        (Cause::NotJoined(group), 99)
    );

    // The event is not taken before the group is left, so it is dropped with the membership.
    id.join_multicast(group, kind, 0).unwrap();
    eventually("the event", || readable(&channel));
    id.leave_multicast(group, PATIENCE).unwrap();
    assert!(channel.try_next_event().unwrap().is_none());
    assert!(id.memberships().is_empty());
}

#[test]
fn memberships_migrate_with_their_id() {
    let (from, to) = (channel(), channel());
    let id = on_loopback(&from);
    let kind = JoinKind::SendOnlyFullMember;
    for context in 0..3 {
        id.join_multicast("239.1.2.5".parse().unwrap(), kind, context)
            .unwrap();
    }
    assert_eq!(
        next(&from, EventType::MulticastJoin)
            .membership()
            .unwrap()
            .context(),
        0
    );
    eventually("two more events", || readable(&from));
    id.migrate(&to, PATIENCE).unwrap();
    for context in 1..3 {
        let event = next(&to, EventType::MulticastJoin);
        assert_eq!(event.membership().unwrap().context(), context);
    }
    id.write_event(0, 1).unwrap();
    next(&to, EventType::User);
}
