//! Endpoints: from a resolved address to a connection in few calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use portolan::cm::{AddressInfo, CmId, NewQueuePair, QueuePairPlan, RESOURCES_MAX};
use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::verbs::{
    QpState, RecvWr, SendData, SendFlags, SendOp, SendWr, SrqAttr, WcStatus, WorkCompletion,
};
use portolan::resolve::{resolve, resolve_passive};
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::*;

const SRQ: SrqAttr = SrqAttr {
    max_wr: 4,
    max_sge: 1,
    srq_limit: 0,
};

fn plan() -> QueuePairPlan {
    QueuePairPlan {
        pd: None,
        send_cq: None,
        recv_cq: None,
        srq: None,
        init: INIT,
    }
}

/// A listening endpoint, and the address to connect to.
fn listening(plan: Option<QueuePairPlan>) -> (CmId, AddressInfo) {
    let found = resolve_passive("127.0.0.1:0").unwrap();
    let info = AddressInfo::passive(&found[0], TCP);
    let listener = CmId::endpoint(provider(), &info, plan, PATIENCE).unwrap();
    listener.listen(0).unwrap();
    let local = listener.addresses().unwrap().local.unwrap();
    let found = resolve(&local.to_string()).unwrap();
    (listener, AddressInfo::active(&found[0], TCP))
}

#[test]
fn two_endpoints_connect_with_queue_pairs_and_queues_made_on_the_way() {
    let (listener, info) = listening(Some(plan()));
    let active = CmId::endpoint(provider(), &info, Some(plan()), PATIENCE).unwrap();
    let qp = active.queue_pair().unwrap();
    assert_eq!(state_of(&qp), QpState::Init);
    for completions in [active.send_completions(), active.recv_completions()] {
        let completions = completions.unwrap();
        assert!(completions.channel.is_some(), "with its own channel");
        assert!(completions.cq.capacity() >= INIT.cap.max_send_wr);
    }

    let asked = ConnParam {
        responder_resources: RESOURCES_MAX,
        initiator_depth: 2,
        ..param(b"ahoy")
    };
    thread::scope(|scope| {
        let connecting = scope.spawn(|| active.connect(&asked));
        let passive = listener.next_request(PATIENCE).unwrap();
        assert!(passive.is_synchronous());
        let request = passive.last_event().unwrap();
        assert_eq!(request.event_type(), EventType::ConnectRequest);
        assert!(request.private_data().starts_with(b"ahoy\0"));
        let limits = active.device().unwrap().attr().unwrap();
        let offered = request.conn().unwrap().clone();
        assert_eq!(
            offered.initiator_depth, limits.max_qp_rd_atom,
            "as many as it has"
        );
        assert_eq!((offered.responder_resources, offered.qp_num), (2, qp.qpn()));

        // The reply names what the request asked for.
        let reply = ConnParam {
            responder_resources: RESOURCES_MAX,
            initiator_depth: RESOURCES_MAX,
            ..param(b"welcome")
        };
        passive.accept(&reply).unwrap();
        connecting.join().unwrap().unwrap();
        let accepted = active.last_event().unwrap().conn().unwrap().clone();
        assert_eq!(accepted.initiator_depth, 2);
        assert_eq!(accepted.responder_resources, limits.max_qp_rd_atom);
        let their_qp = passive.queue_pair().unwrap();
        assert_eq!(accepted.qp_num, their_qp.qpn());
        assert_eq!([state_of(&qp), state_of(&their_qp)], [QpState::Rts; 2]);
        passive.destroy(PATIENCE).unwrap();
    });
    active.destroy(PATIENCE).unwrap();
    listener.destroy(PATIENCE).unwrap();
}

#[test]
fn a_plan_with_queues_and_domain_makes_none() {
    let (_listener, info) = listening(None);
    let active = CmId::endpoint(provider(), &info, None, PATIENCE).unwrap();
    assert!(active.queue_pair().is_none());
    let verbs = Verbs::of(&active.device().unwrap());
    let given = QueuePairPlan {
        pd: Some(verbs.pd.clone()),
        send_cq: Some(verbs.cq.clone()),
        recv_cq: Some(verbs.cq.clone()),
        srq: None,
        init: INIT,
    };
    active.create_planned_queue_pair(&given).unwrap();
    let completions = active.send_completions().unwrap();
    assert!(Arc::ptr_eq(&completions.cq, &verbs.cq) && completions.channel.is_none());
}

#[test]
fn connection_data_of_the_address_precedes_the_users() {
    let (listener, mut info) = listening(None);
    info.connect = b"header:".to_vec();
    let active = CmId::endpoint(provider(), &info, None, PATIENCE).unwrap();
    let too_long = active.connect(&param(&[0; 50])).unwrap_err();
    assert!(
        matches!(too_long.cause, Cause::InvalidArgument { .. }),
        "{too_long}"
    );
    thread::scope(|scope| {
        scope.spawn(|| active.connect(&param(b"body")));
        let passive = listener.next_request(PATIENCE).unwrap();
        let request = passive.last_event().unwrap();
        assert!(request.private_data().starts_with(b"header:body\0"));
        passive.reject(b"").unwrap();
    });
}

#[test]
fn an_endpoint_gives_the_error_of_the_step_that_failed() {
    let nowhere = AddressInfo {
        passive: false,
        service: TCP,
        source: None,
        destination: None,
        connect: Vec::new(),
    };
    let fails = |info: &AddressInfo| CmId::endpoint(provider(), info, None, PATIENCE).unwrap_err();
    let error = fails(&nowhere);
    assert_eq!((error.step, error.errno()), (Step::ResolveAddress, 22));
    let error = fails(&AddressInfo {
        passive: true,
        ..nowhere.clone()
    });
    assert_eq!((error.step, error.errno()), (Step::Bind, 22));
    let foreign: SocketAddr = "192.0.2.1:7471".parse().unwrap();
    let error = fails(&AddressInfo {
        passive: true,
        source: Some(foreign),
        ..nowhere
    });
    assert_eq!(
        (error.step, error.cause),
        (Step::Bind, Cause::AddressNotAvailable)
    );
}

#[test]
fn requests_are_taken_only_from_synchronous_listeners_and_within_the_time_limit() {
    let passive = Passive::listen();
    let error = passive.listener.next_request(SHORT).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    assert_eq!(error.errno(), 22);
    let (listener, _) = listening(None);
    let error = listener.next_request(SHORT).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
}

#[test]
fn more_resources_than_the_device_has_are_refused() {
    let (_listener, info) = listening(None);
    let active = CmId::endpoint(provider(), &info, None, PATIENCE).unwrap();
    let limits = active.device().unwrap().attr().unwrap();
    for excess in [
        ConnParam {
            responder_resources: limits.max_qp_rd_atom + 1,
            ..param(b"")
        },
        ConnParam {
            initiator_depth: limits.max_qp_init_rd_atom + 1,
            ..param(b"")
        },
    ] {
        let error = active.connect(&excess).unwrap_err();
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
        assert_eq!((error.step, error.errno()), (Step::Connect, 22));
    }
}

#[test]
fn a_request_shows_whether_its_queue_pair_shares_a_receive_queue() {
    let (listener, info) = listening(None);
    for shares in [false, true] {
        let active = CmId::endpoint(provider(), &info, None, PATIENCE).unwrap();
        let verbs = Verbs::of(&active.device().unwrap());
        let srq = shares.then(|| verbs.pd.create_srq(&SRQ).unwrap());
        let with = QueuePairPlan {
            pd: Some(verbs.pd.clone()),
            srq,
            ..plan()
        };
        active.create_planned_queue_pair(&with).unwrap();
        thread::scope(|scope| {
            // The caller's own value does not matter.
            let asked = ConnParam {
                srq: !shares,
                ..param(b"")
            };
            let active = &active;
            scope.spawn(move || active.connect(&asked).unwrap_err());
            let passive = listener.next_request(PATIENCE).unwrap();
            let request = passive.last_event().unwrap();
            assert_eq!(request.conn().unwrap().srq, shares);
            passive.reject(b"").unwrap();
        });
    }
}

#[test]
fn queue_pairs_of_several_ids_use_one_shared_receive_queue() {
    let passive = Passive::listen();
    let verbs = Verbs::of(&provider().device_of(passive.address.ip()).unwrap().0);
    let srq = verbs.pd.create_srq(&SRQ).unwrap();
    for wr_id in 0..2 {
        // Without memory: completions alone show the messages.
        srq.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let connected: Vec<_> = (0..2)
        .map(|_| {
            let (channel, active) = routed(passive.address);
            let active_verbs = Verbs::of(&active.device().unwrap());
            let active_qp = active_verbs.give(&active);
            active.connect(&ConnParam::default()).unwrap();
            let child = passive.request();
            let new = NewQueuePair {
                srq: Some(&srq),
                ..verbs.new_queue_pair()
            };
            let qp = child.create_queue_pair(&new).unwrap();
            child.accept(&ConnParam::default()).unwrap();
            let accepted = next(&channel, EventType::Established);
            assert!(accepted.conn().unwrap().srq, "the reply says so");
            next(&passive.channel, EventType::Established);
            (active_qp, qp, active_verbs, active, child)
        })
        .collect();
    let mut found = [WorkCompletion::EMPTY];
    // The message of the later connection takes the first receive.
    for (wr_id, (active_qp, qp, ..)) in (0..).zip(connected.iter().rev()) {
        let error = qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap_err();
        assert_eq!(error.step, Step::PostReceive, "{error}");
        let send = SendWr {
            wr_id: 9,
            op: SendOp::Send,
            data: SendData::Sges(&[]),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        active_qp.post_send(&send).unwrap();
        eventually("a message", || verbs.cq.poll(&mut found).unwrap() == 1);
        let [completion] = found;
        assert_eq!(completion.status, WcStatus::Success);
        assert_eq!((completion.wr_id, completion.qp_num), (wr_id, qp.qpn()));
    }
    // It cannot be destroyed while queue pairs share it.
    assert_eq!(srq.destroy().unwrap_err().errno(), 16);
}
