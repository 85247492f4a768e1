//! Ids of the low layer: unsuitable uses, repeated calls and late calls.

use std::net::SocketAddr;

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{ConnParam, EventType, IdOption, JoinKind, Service, UserId};
use portolan::provider::verbs::{QpInit, QpState, QpType};
use portolan::wire::addr::{PortSpace, Qpn};
use portolan::{Cause, Error, Step};

use super::says;
use crate::harness::*;
use crate::low::*;

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn a_port_space_serves_no_queue_pair_type_of_another() {
    let channel = channel();
    for (port_space, qp_type, serves) in [
        (PortSpace::Tcp, QpType::Ud, "RC, UC or XRC"),
        (PortSpace::Udp, QpType::Rc, "UD"),
        (PortSpace::Udp, QpType::Uc, "UD"),
        (PortSpace::Ipoib, QpType::Rc, "UD"),
    ] {
        let service = Service {
            port_space,
            qp_type,
        };
        let error = CmId::with_service(&channel, service).unwrap_err();
        says(&error, Step::CreateId, &["port space", serves]);
        assert_eq!(error.errno(), 22);
    }
}

#[test]
fn port_spaces_have_ports_of_their_own() {
    let channel = channel();
    let spaces = [
        (PortSpace::Tcp, QpType::Rc),
        (PortSpace::Udp, QpType::Ud),
        (PortSpace::Ipoib, QpType::Ud),
        (PortSpace::Ib, QpType::Rc),
    ];
    let bound = |(port_space, qp_type), at| {
        let service = Service {
            port_space,
            qp_type,
        };
        let id = CmId::with_service(&channel, service).unwrap();
        id.bind(at).map(|()| id)
    };
    let first = bound(spaces[0], any()).unwrap();
    let at = first.addresses().unwrap().local.unwrap().inet().unwrap();
    let mut ids = vec![first];
    for space in &spaces[1..] {
        ids.push(bound(*space, at).unwrap());
    }
    for space in spaces {
        let error = bound(space, at).unwrap_err();
        let holder = Some("this process".into());
        assert_eq!(error.cause, Cause::AddressInUse { holder });
        assert_eq!(error.errno(), 98, "EADDRINUSE");
    }
    let listener = ids.pop().unwrap();
    listener.listen(0).unwrap();
}

#[test]
fn a_request_of_one_port_space_does_not_reach_a_listener_of_another() {
    let passive = Passive::listen_on(channel(), UDP);
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    assert_eq!(
        next(&channel, EventType::Rejected).status(),
        8,
        "nobody listens"
    );
    assert!(passive.channel.try_next_event().unwrap().is_none());
}

/// Checks that exactly `most` bytes of private data are accepted.
fn takes_at_most(step: Step, most: usize, give: impl Fn(&[u8]) -> Result<(), Error>) {
    let error = give(&vec![0; most + 1]).unwrap_err();
    let expected = format!("expected at most {most} bytes, found {} bytes", most + 1);
    says(&error, step, &["private data", &expected]);
    assert_eq!(error.errno(), 22);
    give(&vec![0; most]).unwrap();
}

#[test]
fn private_data_is_bounded_by_the_message_that_carries_it() {
    for (service, request, reply, refusal) in [(TCP, 56, 196, 148), (UDP, 180, 136, 136)] {
        let passive = Passive::listen_on(channel(), service);
        for accepts in [true, false] {
            let (_channel, id) = routed_on(channel(), service, passive.address);
            takes_at_most(Step::Connect, request, |data| id.connect(&param(data)));
            let child = passive.request();
            if accepts {
                takes_at_most(Step::Accept, reply, |data| child.accept(&param(data)));
            } else {
                takes_at_most(Step::Reject, refusal, |data| child.reject(data));
            }
        }
    }
}

#[test]
fn a_request_is_answered_once() {
    for service in [TCP, UDP] {
        let passive = Passive::listen_on(channel(), service);
        let (_channel, id) = routed_on(channel(), service, passive.address);
        id.connect(&param(b"")).unwrap();
        let child = passive.request();
        child.accept(&param(b"")).unwrap();
        let again = [
            child.accept(&param(b"")).unwrap_err(),
            id.accept(&param(b"")).unwrap_err(),
            passive.listener.accept(&param(b"")).unwrap_err(),
        ];
        for error in again {
            assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
            assert_eq!((error.step, error.errno()), (Step::Accept, 22));
        }

        let (_channel, id) = routed_on(channel(), service, passive.address);
        id.connect(&param(b"")).unwrap();
        let child = passive.request();
        child.reject(b"").unwrap();
        for error in [
            child.reject(b"").unwrap_err(),
            child.accept(&param(b"")).unwrap_err(),
        ] {
            assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
        }
    }
}

#[test]
fn numbers_of_the_fabrics_own_queue_pairs_are_refused() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    for qp_num in [0, 1].map(Qpn::new) {
        let own = ConnParam {
            qp_num,
            ..param(b"")
        };
        let error = id.connect(&own).unwrap_err();
        says(&error, Step::Connect, &["queue pair number"]);
    }
}

#[test]
fn groups_are_joined_by_datagram_ids_that_are_bound() {
    let channel = channel();
    let (group, anyone) = (
        "239.0.0.1".parse().unwrap(),
        "127.0.0.1:7471".parse().unwrap(),
    );
    let join = |id: &CmId| {
        let joined = id.join_multicast(group, JoinKind::FullMember, 0);
        assert!(id.memberships().is_empty(), "nothing is left behind");
        joined.unwrap_err()
    };
    let unbound = CmId::with_service(&channel, UDP).unwrap();
    let error = join(&unbound);
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    says(&error, Step::JoinMulticast, &["bound"]);
    let connected = CmId::new(&channel).unwrap();
    connected.resolve_addr(None, anyone, PATIENCE).unwrap();
    next(&channel, EventType::AddrResolved);
    says(&join(&connected), Step::JoinMulticast, &["UD", "RC"]);
    for open in ["0.0.0.0:0", "127.0.0.1:0"] {
        let id = CmId::with_service(&channel, UDP).unwrap();
        id.bind(open.parse().unwrap()).unwrap();
        says(&join(&id), Step::JoinMulticast, &["bound to a device"]);
    }
    assert!(channel.try_next_event().unwrap().is_none());
}

#[test]
fn groups_of_the_wrong_family_and_hosts_cannot_be_joined() {
    let channel = channel();
    let id = on_loopback(&channel);
    for (group, errno) in [
        ("127.0.0.1", 22),
        ("0.0.0.0", 22),
        ("::1", 22),
        ("ff0e::1", 22),
        ("ff02::1", 22),
    ] {
        let group = group.parse().unwrap();
        let error = id
            .join_multicast(group, JoinKind::FullMember, 0)
            .unwrap_err();
        assert_eq!(
            (error.step, error.errno()),
            (Step::JoinMulticast, errno),
            "{error}"
        );
        let error = id.leave_multicast(group, PATIENCE).unwrap_err();
        assert_eq!(error.cause, Cause::NotJoined(group));
    }
}

#[test]
fn options_are_checked_for_the_id_and_its_state() {
    let passive = Passive::listen();
    let datagrams = CmId::with_service(&passive.channel, UDP).unwrap();
    let idle = CmId::new(&passive.channel).unwrap();
    for (id, option, named) in [
        (&datagrams, IdOption::AckTimeout(14), "RC"),
        (&idle, IdOption::AckTimeout(32), "0 to 31"),
        (
            &passive.listener,
            IdOption::ReuseAddr(true),
            "not listening",
        ),
        (&passive.listener, IdOption::AfOnly(true), "idle or bound"),
    ] {
        let error = id.set_option(option).unwrap_err();
        says(&error, Step::SetOption, &[named]);
        assert_eq!(error.errno(), 22);
    }
    let error = idle.set_min_rnr_timer(32).unwrap_err();
    says(&error, Step::SetOption, &["0 to 31"]);
}

#[test]
fn an_id_has_only_queue_pairs_of_its_own_type() {
    let passive = Passive::listen();
    let (_channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let init = QpInit {
        qp_type: QpType::Ud,
        ..INIT
    };
    let new = portolan::cm::NewQueuePair {
        srq: None,
        init,
        ..verbs.new_queue_pair()
    };
    let error = id.create_queue_pair(&new).unwrap_err();
    says(&error, Step::CreateQp, &["expected RC, found UD"]);
    assert!(id.queue_pair().is_none());
}

#[test]
fn destroying_an_id_flushes_outstanding_work_and_disconnects_its_peer() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.give(&id);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    next(&channel, EventType::Established);
    next(&passive.channel, EventType::Established);
    let empty = portolan::provider::verbs::RecvWr {
        wr_id: 7,
        sges: &[],
    };
    qp.post_recv(&empty).unwrap();
    id.clone().destroy(PATIENCE).unwrap();
    next(&passive.channel, EventType::Disconnected);
    // The queue pair and its work are gone.
    assert!(qp.post_recv(&empty).is_err());
    assert!(qp.query().is_err() || state_of(&qp) != QpState::Rts);
    for error in [
        id.disconnect().unwrap_err(),
        id.connect(&param(b"")).unwrap_err(),
        id.write_event(0, 0).unwrap_err(),
        id.clone()
            .join_multicast("239.0.0.1".parse().unwrap(), JoinKind::FullMember, 0)
            .unwrap_err(),
    ] {
        assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
        assert_eq!(error.errno(), 2);
    }
    id.destroy(PATIENCE).unwrap();
}

#[test]
fn closing_a_channel_destroys_its_ids() {
    let (closed, open) = (
        provider().open_channel().unwrap(),
        provider().open_channel().unwrap(),
    );
    let id = closed.create_id(UserId(1 << 40), TCP).unwrap();
    closed.bind(id, any()).unwrap();
    drop(closed);
    let gone = [
        open.bind(id, any()).unwrap_err(),
        open.listen(id, 0).unwrap_err(),
        open.resolve_addr(id, None, any(), PATIENCE).unwrap_err(),
        open.connect(id, &param(b""), Default::default())
            .unwrap_err(),
        open.disconnect(id).unwrap_err(),
        open.addresses(id).unwrap_err(),
        open.write_event(id, EventType::User, 0, 0).unwrap_err(),
        open.destroy_id(id).unwrap_err(),
    ];
    for error in gone {
        assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
        assert_eq!(error.errno(), 2, "ENOENT");
    }
}

#[test]
fn an_id_outlives_the_handle_of_its_channel() {
    let channel = EventChannel::open_on(provider()).unwrap();
    let id = CmId::new(&channel).unwrap();
    drop(channel);
    id.bind(any()).unwrap();
    assert_ne!(id.addresses().unwrap().local.unwrap().port(), 0);
}
