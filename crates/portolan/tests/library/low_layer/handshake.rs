//! The handshake: order and fields as documented in rdma_get_cm_event(3), and states.

use portolan::cm::{CmId, NewQueuePair, RESOURCES_MAX};
use portolan::provider::cm::{ConnParam, Ece, EventParam, EventType, UserId};
use portolan::provider::verbs::QpState;
use portolan::wire::cm::RejectReason;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::*;

#[test]
fn a_connections_events_come_in_order_with_the_fields_of_the_manual() {
    let passive = Passive::listen();
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    id.resolve_addr(None, passive.address, PATIENCE).unwrap();
    let event = next(&channel, EventType::AddrResolved);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    assert_eq!((event.private_data(), event.conn()), (&[][..], None));
    let known = id.addresses().unwrap();
    assert_eq!(known.remote, Some(passive.address.into()));
    assert_eq!(
        known.local.unwrap().inet().unwrap().ip(),
        passive.address.ip()
    );
    assert_ne!(known.local.unwrap().port(), 0);
    assert_eq!(
        (known.sgid, known.dgid),
        (Some(known.local.unwrap().gid()), known.dgid)
    );

    id.resolve_route(PATIENCE).unwrap();
    assert_eq!(next(&channel, EventType::RouteResolved).status(), 0);
    assert_eq!(id.paths().unwrap().len(), 1);

    let active_verbs = Verbs::of(&id.device().unwrap());
    let active_qp = active_verbs.give(&id);
    let param = ConnParam {
        private_data: Box::from(&b"request"[..]),
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 4,
        ..ConnParam::default()
    };
    id.connect(&param).unwrap();

    let event = next(&passive.channel, EventType::ConnectRequest);
    let listener = event.listener().expect("a request names its listener");
    assert_eq!(listener.number(), passive.listener.number());
    assert_ne!(event.id().number(), passive.listener.number());
    let request = event.conn().unwrap();
    // As seen from this side: the peer's initiator depth is our responder resources.
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (5, 3)
    );
    assert_eq!((request.retry_count, request.rnr_retry_count), (6, 4));
    assert_eq!((request.qp_num, request.srq), (active_qp.qpn(), false));
    assert_eq!(event.private_data().len(), 56);
    assert!(event.private_data().starts_with(b"request\0"));
    let child = event.id().clone();
    drop(event);

    let passive_verbs = Verbs::of(&child.device().unwrap());
    let passive_qp = passive_verbs.give(&child);
    let reply = ConnParam {
        private_data: Box::from(&b"reply"[..]),
        responder_resources: 2,
        initiator_depth: 1,
        rnr_retry_count: 7,
        ..ConnParam::default()
    };
    child.accept(&reply).unwrap();
    assert_eq!(state_of(&passive_qp), QpState::Rts);

    let event = next(&channel, EventType::Established);
    let accepted = event.conn().unwrap();
    assert_eq!(
        (accepted.responder_resources, accepted.initiator_depth),
        (1, 2)
    );
    assert_eq!(
        (accepted.qp_num, accepted.rnr_retry_count),
        (passive_qp.qpn(), 7)
    );
    assert_eq!(event.private_data().len(), 196);
    assert!(event.private_data().starts_with(b"reply\0"));
    assert_eq!(state_of(&active_qp), QpState::Rts);

    let event = next(&passive.channel, EventType::Established);
    assert_eq!((event.status(), event.id().number()), (0, child.number()));
    assert_eq!(
        event.private_data(),
        b"",
        "an RTU's private data is not reported"
    );

    id.disconnect().unwrap();
    assert_eq!(state_of(&active_qp), QpState::Err);
    let event = next(&passive.channel, EventType::Disconnected);
    assert_eq!((event.status(), event.private_data()), (0, &b""[..]));
    assert_eq!(
        state_of(&passive_qp),
        QpState::Rts,
        "until its owner disconnects too"
    );
    child.disconnect().unwrap();
    assert_eq!(state_of(&passive_qp), QpState::Err);
    assert_eq!(next(&channel, EventType::Disconnected).status(), 0);
    assert_eq!(next(&channel, EventType::TimewaitExit).status(), 0);
    assert_eq!(next(&passive.channel, EventType::TimewaitExit).status(), 0);
}

#[test]
fn with_an_external_queue_pair_the_application_completes_the_handshake() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.external();
    bring(&qp, &id, &[QpState::Init]);
    let param = ConnParam {
        qp_num: qp.qpn(),
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    };
    id.connect(&param).unwrap();

    let child = passive.request();
    let child_verbs = Verbs::of(&child.device().unwrap());
    let child_qp = child_verbs.external();
    bring(
        &child_qp,
        &child,
        &[QpState::Init, QpState::Rtr, QpState::Rts],
    );
    let reply = ConnParam {
        qp_num: child_qp.qpn(),
        ..param
    };
    child.accept(&reply).unwrap();

    let event = next(&channel, EventType::ConnectResponse);
    assert_eq!(event.conn().unwrap().qp_num, child_qp.qpn());
    assert!(
        passive.channel.try_next_event().unwrap().is_none(),
        "the passive side waits for the RTU"
    );
    bring(&qp, &id, &[QpState::Rtr, QpState::Rts]);
    id.establish().unwrap();
    next(&passive.channel, EventType::Established);
    assert_eq!(qp.query().unwrap().0.dest_qpn, child_qp.qpn());
}

#[test]
fn a_rejection_carries_reason_28_and_the_private_data() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.give(&id);
    id.connect(&ConnParam::default()).unwrap();
    passive.request().reject(&pattern(148, 3)).unwrap();
    let event = next(&channel, EventType::Rejected);
    assert_eq!(event.status(), 28);
    assert_eq!(event.private_data(), pattern(148, 3));
    assert_eq!(state_of(&qp), QpState::Err);
    let cause = event.failure().unwrap().cause;
    assert_eq!(
        cause,
        Cause::Rejected {
            reason: RejectReason::CONSUMER_DEFINED,
            private_data: pattern(148, 3).into()
        }
    );
}

#[test]
fn operations_in_the_wrong_state_report_the_required_state() {
    let passive = Passive::listen();
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let param = param(b"");
    let refused = [
        (id.connect(&param), Step::Connect, "route resolved"),
        (
            id.resolve_route(PATIENCE),
            Step::ResolveRoute,
            "address resolved",
        ),
        (
            id.accept(&param),
            Step::Accept,
            "REQ received or SIDR REQ received",
        ),
        (id.establish(), Step::Accept, "REP received"),
        (
            id.disconnect(),
            Step::Disconnect,
            "connecting, established or later",
        ),
        (
            passive.listener.connect(&param),
            Step::Connect,
            "route resolved",
        ),
        (passive.listener.listen(0), Step::Listen, "bound"),
        (
            passive.listener.bind("127.0.0.1:0".parse().unwrap()),
            Step::Bind,
            "an unbound id",
        ),
    ];
    for (outcome, step, needed) in refused {
        let error = outcome.unwrap_err();
        assert_eq!(error.step, step);
        match error.cause {
            Cause::InvalidState { expected, .. } => assert_eq!(expected, needed, "{step}"),
            other => panic!("{step}: {other}"),
        }
        assert_eq!(error.errno(), 22);
    }
    let (_channel, second) = routed(passive.address);
    let verbs = Verbs::of(&second.device().unwrap());
    verbs.give(&second);
    let new = NewQueuePair {
        pd: &verbs.pd,
        send_cq: &verbs.cq,
        recv_cq: &verbs.cq,
        srq: None,
        init: INIT,
    };
    let error = second.create_queue_pair(&new).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("expected an id without queue pair"),
        "{error}"
    );
}

/// A peer may offer more than this side's device has.
#[test]
fn the_maximum_of_an_acceptor_is_at_most_its_devices_limit_whatever_the_request_offers() {
    let passive = Passive::listen();
    // Without the library's own check of what the device of the active side has.
    let active = provider().open_channel().unwrap();
    let id = active.create_id(UserId(1 << 40), TCP).unwrap();
    active
        .resolve_addr(id, None, passive.address, PATIENCE)
        .unwrap();
    let told = || active.wait_event(Some(PATIENCE)).unwrap();
    assert_eq!(told().event, EventType::AddrResolved);
    active.resolve_route(id, PATIENCE).unwrap();
    assert_eq!(told().event, EventType::RouteResolved);
    let offer = ConnParam {
        responder_resources: 200,
        initiator_depth: 200,
        ..param(b"")
    };
    active.connect(id, &offer, Ece::default()).unwrap();

    let child = passive.request();
    let verbs = Verbs::of(&child.device().unwrap());
    verbs.give(&child);
    let limits = child.device().unwrap().attr().unwrap();
    assert!(limits.max_qp_rd_atom < 200 && limits.max_qp_init_rd_atom < 200);
    let most = ConnParam {
        responder_resources: RESOURCES_MAX,
        initiator_depth: RESOURCES_MAX,
        ..param(b"")
    };
    child.accept(&most).unwrap();
    let reply = told();
    assert_eq!(reply.event, EventType::ConnectResponse);
    let EventParam::Conn(reply) = reply.param else {
        panic!("{reply:?}")
    };
    // As the active side sees it.
    assert_eq!(
        (reply.responder_resources, reply.initiator_depth),
        (limits.max_qp_init_rd_atom, limits.max_qp_rd_atom)
    );
}
