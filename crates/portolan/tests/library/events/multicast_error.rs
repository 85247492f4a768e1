//! RDMA_CM_EVENT_MULTICAST_ERROR: an error either occurred joining a multicast group, or, if the group
//! had already been joined, on an existing group. The specified multicast group is no longer accessible
//! and should be rejoined, if desired.

use portolan::Step;
use portolan::cm::EventChannel;
use portolan::provider::cm::{EventType, JoinKind};
use portolan::provider::verbs::{QpInit, QpType};
use portolan::software::SoftwareConfig;
use portolan::wire::addr::{QKey, Qpn};

use crate::harness::*;
use crate::low::*;

const FULL: JoinKind = JoinKind::FullMember;

/// A channel whose device has few groups, and few queue pairs in each.
fn narrow() -> EventChannel {
    let mut config = SoftwareConfig::default();
    config.stack.limits.max_mcast_grp = 1;
    config.stack.limits.max_mcast_qp_attach = 1;
    EventChannel::open_on(start_with(free_port(), config)).unwrap()
}

#[test]
fn multicast_error_reports_that_the_host_cannot_join_and_the_group() {
    let channel = narrow();
    let id = on_loopback(&channel);
    let [first, second] = ["239.9.0.1", "239.9.0.2"].map(|group| group.parse().unwrap());
    id.join_multicast(first, FULL, 1).unwrap();
    next(&channel, EventType::MulticastJoin);
    id.join_multicast(second, FULL, 2).unwrap();
    let event = next(&channel, EventType::MulticastError);
    assert_eq!((event.status(), event.id().number()), (-12, id.number()));
    let membership = event.membership().unwrap();
    assert_eq!((membership.group(), membership.context()), (second, 2));
    let ud = event.ud().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (Qpn::new(0), QKey(0)));
    let error = event.failure().unwrap();
    assert_eq!((error.step, error.errno()), (Step::JoinMulticast, 12));
    drop(event);

    // Rejoined after the reason is gone.
    id.leave_multicast(second, PATIENCE).unwrap();
    id.leave_multicast(first, PATIENCE).unwrap();
    id.join_multicast(second, FULL, 3).unwrap();
    next(&channel, EventType::MulticastJoin);
}

#[test]
fn multicast_error_reports_that_the_queue_pair_cannot_be_attached() {
    let channel = narrow();
    let ids = [on_loopback(&channel), on_loopback(&channel)];
    let verbs = Verbs::of(&ids[0].device().unwrap());
    let init = QpInit {
        qp_type: QpType::Ud,
        ..INIT
    };
    let group = "239.9.0.3".parse().unwrap();
    for (id, expected) in ids
        .iter()
        .zip([EventType::MulticastJoin, EventType::MulticastError])
    {
        let new = portolan::cm::NewQueuePair {
            srq: None,
            init,
            ..verbs.new_queue_pair()
        };
        id.create_queue_pair(&new).unwrap();
        id.join_multicast(group, FULL, 0).unwrap();
        let event = next(&channel, expected);
        let status = if expected == EventType::MulticastJoin {
            0
        } else {
            -12
        };
        assert_eq!(event.status(), status);
    }
}
