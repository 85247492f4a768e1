//! Multicast groups: joining, leaving, and the resulting events and queries.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_cm::{Cm, Config, GroupQuery, Membership, MembershipNumber, TableSizes};
use portolan_provider::cm::{Ece, EventType, IdNumber, JoinKind, UserId};
use portolan_provider::error::Cause;
use portolan_provider::error::errno::ENODEV;
use portolan_provider::verbs::AhAttr;
use portolan_wire::{Gid, QKey, Qpn};

use crate::net::*;

const NOW: Duration = Duration::from_secs(1);
const JOINS: UserId = UserId(77);

fn group() -> IpAddr {
    [239, 1, 2, 3].into()
}

/// An engine with a datagram id that is bound to a device.
fn bound_with(config: Config) -> (Cm, IdNumber) {
    let mut cm = Cm::new(config, [1; 32]);
    let id = cm.create_id(UserId(5), UDP).unwrap();
    cm.bind(NOW, id, SocketAddr::new(ip(0), PORT), Some(device(0)))
        .unwrap();
    (cm, id)
}

fn bound() -> (Cm, IdNumber) {
    bound_with(Config::default())
}

fn join(cm: &mut Cm, id: IdNumber, kind: JoinKind) -> MembershipNumber {
    cm.join(NOW, id, JOINS, group(), kind).unwrap()
}

/// Joins, and takes the query.
fn asked(cm: &mut Cm, id: IdNumber, kind: JoinKind) -> Membership {
    let number = join(cm, id, kind);
    match cm.poll_group_query() {
        Some(GroupQuery::Join(membership)) if membership.number == number => membership,
        other => panic!("expected the join, found {other:?}"),
    }
}

#[test]
fn the_host_is_queried_and_the_owner_learns_how_to_reach_the_group() {
    for kind in [JoinKind::FullMember, JoinKind::SendOnlyFullMember] {
        let (mut cm, id) = bound();
        let membership = asked(&mut cm, id, kind);
        let number = membership.number;
        assert_eq!(
            membership,
            Membership {
                number,
                id,
                device: device(0),
                local: ip(0),
                group: [239, 1, 2, 3].into(),
                mgid: Gid(*b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\x01\x02\x03"),
                kind,
            }
        );
        assert_eq!(cm.poll_event(), None, "the host has not answered");
        cm.group_joined(NOW, number, Ok(())).unwrap();
        let event = cm.poll_event().expect("an event");
        assert_eq!(
            (event.event, event.uid, event.id, event.status),
            (EventType::MulticastJoin, JOINS, id, 0)
        );
        let told = ud(&event);
        assert_eq!(
            (told.qp_num, told.qkey),
            (Qpn::new(0xFF_FFFF), QKey(0x0123_4567))
        );
        assert!(told.private_data.is_empty());
        assert_eq!(
            told.ah_attr,
            AhAttr {
                dgid: membership.mgid,
                sgid_index: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
                sl: 0,
                port_num: 1,
                local_route: None,
            }
        );
        cm.leave(NOW, id, number).unwrap();
        assert_eq!(cm.poll_group_query(), Some(GroupQuery::Leave(membership)));
        assert_eq!(cm.poll_group_query(), None);
        assert_eq!(cm.table_sizes().memberships, 0);
    }
}

#[test]
fn the_ids_key_is_used_for_the_group() {
    let (mut cm, id) = bound();
    cm.set_qkey(id, QKey(9)).unwrap();
    let membership = asked(&mut cm, id, JoinKind::FullMember);
    cm.group_joined(NOW, membership.number, Ok(())).unwrap();
    assert_eq!(ud(&cm.poll_event().unwrap()).qkey, QKey(9));
}

#[test]
fn a_group_that_the_host_cannot_join_is_multicast_error_and_is_not_left() {
    let (mut cm, id) = bound();
    let membership = asked(&mut cm, id, JoinKind::FullMember);
    cm.group_joined(NOW, membership.number, Err(ENODEV))
        .unwrap();
    let event = cm.poll_event().expect("an event");
    assert_eq!(
        (event.event, event.uid, event.status),
        (EventType::MulticastError, JOINS, -ENODEV)
    );
    assert_eq!(ud(&event).qp_num, Qpn::new(0));
    cm.leave(NOW, id, membership.number).unwrap();
    assert_eq!(cm.poll_group_query(), None);
}

#[test]
fn a_joined_group_whose_device_is_removed_is_multicast_error_and_the_host_leaves_it() {
    let (mut cm, id) = bound();
    let joined = asked(&mut cm, id, JoinKind::FullMember);
    cm.group_joined(NOW, joined.number, Ok(())).unwrap();
    let waits = asked(&mut cm, id, JoinKind::FullMember);
    assert_eq!(
        cm.poll_event().map(|event| event.event),
        Some(EventType::MulticastJoin)
    );

    cm.device_removed(NOW, device(0).device_index);
    let lost = cm.poll_event().expect("an event");
    assert_eq!(
        (lost.event, lost.uid, lost.id, lost.status),
        (EventType::MulticastError, JOINS, id, -ENODEV)
    );
    assert_eq!((ud(&lost).qp_num, ud(&lost).qkey), (Qpn::new(0), QKey(0)));
    let removal = cm.poll_event().map(|event| event.event);
    assert_eq!(removal, Some(EventType::DeviceRemoval));
    assert_eq!(cm.poll_event(), None);
    assert_eq!(cm.poll_group_query(), Some(GroupQuery::Leave(joined)));
    assert_eq!(
        cm.poll_group_query(),
        None,
        "the other query is not answered yet"
    );

    // Leaving afterwards causes no query.
    cm.leave(NOW, id, joined.number).unwrap();
    cm.group_joined(NOW, waits.number, Err(ENODEV)).unwrap();
    assert_eq!(
        cm.poll_event().map(|event| event.status),
        Some(-ENODEV),
        "the answer to its own query"
    );
    cm.destroy_id(NOW, id).unwrap();
    assert_eq!(cm.poll_group_query(), None);
    assert_eq!(cm.table_sizes(), TableSizes::default());
}

#[test]
fn an_answer_counts_once() {
    let (mut cm, id) = bound();
    let number = join(&mut cm, id, JoinKind::FullMember);
    cm.group_joined(NOW, number, Ok(())).unwrap();
    assert_eq!(cm.poll_event(), None, "no query has been made");
    cm.poll_group_query().expect("the join");
    cm.group_joined(NOW, number, Ok(())).unwrap();
    cm.group_joined(NOW, number, Err(ENODEV)).unwrap();
    assert_eq!(cm.poll_event().unwrap().event, EventType::MulticastJoin);
    assert_eq!(cm.poll_event(), None);
}

#[test]
fn leaving_early_withdraws_a_pending_join() {
    // The query was not taken: it is dropped, and there is nothing to leave.
    let (mut cm, id) = bound();
    let number = join(&mut cm, id, JoinKind::FullMember);
    cm.leave(NOW, id, number).unwrap();
    assert_eq!(cm.poll_group_query(), None);
    // It was taken: the host is asked to leave, and its late answer is ignored.
    let membership = asked(&mut cm, id, JoinKind::FullMember);
    cm.leave(NOW, id, membership.number).unwrap();
    assert_eq!(cm.poll_group_query(), Some(GroupQuery::Leave(membership)));
    cm.group_joined(NOW, membership.number, Ok(())).unwrap();
    assert_eq!(cm.poll_event(), None);
    // It was answered but the event not taken: the event is dropped.
    let membership = asked(&mut cm, id, JoinKind::FullMember);
    cm.group_joined(NOW, membership.number, Ok(())).unwrap();
    cm.leave(NOW, id, membership.number).unwrap();
    assert_eq!(cm.poll_event(), None);
}

#[test]
fn a_group_may_be_joined_twice_and_each_membership_is_left_by_itself_and_once() {
    let (mut cm, id) = bound();
    let other = cm.create_id(UserId(6), UDP).unwrap();
    let first = asked(&mut cm, id, JoinKind::FullMember);
    let second = asked(&mut cm, id, JoinKind::SendOnlyFullMember);
    let not_there = |result: portolan_provider::Result<()>| {
        let cause = result.unwrap_err().cause;
        assert!(matches!(cause, Cause::NoSuchObject(_)), "{cause}");
    };
    not_there(cm.leave(NOW, other, first.number));
    cm.leave(NOW, id, first.number).unwrap();
    not_there(cm.leave(NOW, id, first.number));
    assert_eq!(cm.poll_group_query(), Some(GroupQuery::Leave(first)));
    cm.group_joined(NOW, second.number, Ok(())).unwrap();
    assert_eq!(cm.poll_event().unwrap().event, EventType::MulticastJoin);
}

#[test]
fn destroying_an_id_leaves_its_groups_and_no_others() {
    let (mut cm, id) = bound();
    let other = cm.create_id(UserId(6), UDP).unwrap();
    cm.bind(NOW, other, SocketAddr::new(ip(0), 7000), Some(device(0)))
        .unwrap();
    let joined = asked(&mut cm, id, JoinKind::FullMember);
    let kept = asked(&mut cm, other, JoinKind::FullMember);
    cm.group_joined(NOW, joined.number, Ok(())).unwrap();
    join(&mut cm, id, JoinKind::FullMember);
    cm.destroy_id(NOW, id).unwrap();
    assert_eq!(cm.poll_group_query(), Some(GroupQuery::Leave(joined)));
    assert_eq!(cm.poll_group_query(), None);
    assert_eq!(cm.poll_event(), None);
    assert_eq!(cm.table_sizes().memberships, 1);
    cm.destroy_id(NOW, other).unwrap();
    assert_eq!(cm.poll_group_query(), Some(GroupQuery::Leave(kept)));
    assert_eq!(cm.table_sizes(), TableSizes::default());
}

#[test]
fn only_a_datagram_id_that_has_a_device_and_no_route_joins() {
    let kind = JoinKind::FullMember;
    let refused = |cm: &mut Cm, id| cm.join(NOW, id, JOINS, group(), kind).unwrap_err().cause;
    let (mut cm, _) = bound();
    let unbound = cm.create_id(UserId(1), UDP).unwrap();
    assert!(matches!(
        refused(&mut cm, unbound),
        Cause::InvalidState { .. }
    ));
    let any = SocketAddr::new([0, 0, 0, 0].into(), 7000);
    cm.bind(NOW, unbound, any, None).unwrap();
    assert!(matches!(
        refused(&mut cm, unbound),
        Cause::InvalidState { .. }
    ));
    let connected = cm.create_id(UserId(1), RC).unwrap();
    cm.bind(
        NOW,
        connected,
        SocketAddr::new(ip(0), 7001),
        Some(device(0)),
    )
    .unwrap();
    assert!(matches!(
        refused(&mut cm, connected),
        Cause::InvalidArgument { .. }
    ));
    let mut net = Net::datagrams();
    let routed = net.resolved(1);
    assert!(matches!(
        refused(net.cm(0), routed),
        Cause::InvalidState { .. }
    ));
    assert_eq!(
        (
            cm.table_sizes().memberships,
            net.cm(0).table_sizes().memberships
        ),
        (0, 0)
    );
}

#[test]
fn a_group_must_have_the_ids_ip_version_in_any_notation() {
    let (mut cm, id) = bound();
    let kind = JoinKind::FullMember;
    for address in ["10.0.0.1", "0.0.0.0", "::", "2001:db8::1"] {
        let address: IpAddr = address.parse().unwrap();
        let cause = cm.join(NOW, id, JOINS, address, kind).unwrap_err().cause;
        assert!(
            matches!(cause, Cause::InvalidArgument { .. }),
            "{address}: {cause}"
        );
    }
    let cause = cm
        .join(NOW, id, JOINS, "ff0e::1".parse().unwrap(), kind)
        .unwrap_err()
        .cause;
    assert!(
        matches!(cause, Cause::InvalidArgument { .. }),
        "the id has an IPv4 address: {cause}"
    );
    let mapped = "::ffff:239.1.2.3".parse().unwrap();
    cm.join(NOW, id, JOINS, mapped, kind).unwrap();
    let Some(GroupQuery::Join(membership)) = cm.poll_group_query() else {
        panic!("a join")
    };
    assert_eq!(membership.group, group());
}

#[test]
fn a_group_of_ipv6_is_its_own_gid_for_an_id_at_an_address_of_ipv6() {
    let mut cm = Cm::new(Config::default(), [1; 32]);
    let id = cm.create_id(UserId(5), UDP).unwrap();
    let local: IpAddr = "fd07::1".parse().unwrap();
    let device = device_with(local, 1);
    cm.bind(NOW, id, SocketAddr::new(local, PORT), Some(device))
        .unwrap();
    let group: IpAddr = "ff15::77".parse().unwrap();
    cm.join(NOW, id, JOINS, group, JoinKind::FullMember)
        .unwrap();
    let Some(GroupQuery::Join(membership)) = cm.poll_group_query() else {
        panic!("a join")
    };
    assert_eq!((membership.group, membership.local), (group, local));
    assert_eq!(membership.mgid.to_string(), "ff15::77");
    cm.group_joined(NOW, membership.number, Ok(())).unwrap();
    let event = cm.poll_event().expect("an event");
    assert_eq!(event.event, EventType::MulticastJoin);
    assert_eq!(ud(&event).ah_attr.dgid, membership.mgid);
}

#[test]
fn memberships_and_questions_about_them_are_bounded() {
    let config = Config {
        max_memberships: 3,
        ..Config::default()
    };
    let (mut cm, id) = bound_with(config);
    let kind = JoinKind::FullMember;
    let held: Vec<_> = (0..3).map(|_| asked(&mut cm, id, kind)).collect();
    let refused = |cm: &mut Cm| {
        let cause = cm.join(NOW, id, JOINS, group(), kind).unwrap_err().cause;
        match cause {
            Cause::LimitReached { what, .. } => what,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused(&mut cm), "multicast memberships");
    for membership in held {
        cm.leave(NOW, id, membership.number).unwrap();
    }
    // Three leaves wait. Joins that are given up at once also wait until their place is needed.
    for _ in 0..3 {
        let number = join(&mut cm, id, kind);
        cm.leave(NOW, id, number).unwrap();
    }
    assert_eq!(refused(&mut cm), "group queries waiting to be taken");
    for _ in 0..3 {
        let query = cm.poll_group_query();
        assert!(matches!(query, Some(GroupQuery::Leave(_))), "{query:?}");
    }
    assert_eq!(cm.poll_group_query(), None);
    join(&mut cm, id, kind);
}

#[test]
fn a_datagram_id_may_resolve_a_group_to_find_the_device_to_join_it_on() {
    let mut net = Net::datagrams();
    let id = net.cm(0).create_id(UserId(1), UDP).unwrap();
    let destination = SocketAddr::new(group(), PORT);
    let now = net.now;
    net.cm(0)
        .resolve_addr(now, id, None, destination, Duration::from_secs(1))
        .unwrap();
    net.drain();
    net.expect(0, EventType::AddrResolved);
    net.cm(0)
        .join(now, id, JOINS, group(), JoinKind::FullMember)
        .unwrap();
    let Some(GroupQuery::Join(membership)) = net.cm(0).poll_group_query() else {
        panic!("a join")
    };
    assert_eq!((membership.local, membership.device), (ip(0), device(0)));
}

#[test]
fn an_answer_for_which_there_is_no_room_may_be_given_again() {
    let config = Config {
        max_events_queued: 1,
        ..Config::default()
    };
    let (mut cm, id) = bound_with(config);
    let [first, second] = [(); 2].map(|()| asked(&mut cm, id, JoinKind::FullMember));
    cm.group_joined(NOW, first.number, Ok(())).unwrap();
    let cause = cm
        .group_joined(NOW, second.number, Ok(()))
        .unwrap_err()
        .cause;
    assert!(matches!(cause, Cause::LimitReached { .. }), "{cause}");
    cm.poll_event().expect("the first");
    cm.group_joined(NOW, second.number, Ok(())).unwrap();
    cm.poll_event().expect("the second");
}

#[test]
fn a_join_is_answered_while_messages_that_wait_to_be_sent_fill_the_queue() {
    let mut net = Net::with_config(Config {
        max_transmits_queued: 2,
        ..Config::default()
    });
    net.service = UDP;
    let asking = net.resolved(10);
    let id = net.cm(0).create_id(UserId(1), UDP).unwrap();
    let (now, destination) = (net.now, SocketAddr::new(group(), PORT));
    net.cm(0)
        .resolve_addr(now, id, None, destination, Duration::from_secs(1))
        .unwrap();
    net.drain();
    net.expect(0, EventType::AddrResolved);
    let cm = net.cm(0);
    cm.connect(now, asking, &param(0x10, b""), Ece::default())
        .unwrap();
    for (answer, told) in [
        (Ok(()), EventType::MulticastJoin),
        (Err(ENODEV), EventType::MulticastError),
    ] {
        let membership = asked(cm, id, JoinKind::FullMember);
        cm.group_joined(now, membership.number, answer).unwrap();
        assert_eq!(cm.poll_event().map(|event| event.event), Some(told));
    }
}
