//! RDMA_CM_EVENT_ESTABLISHED: indicates that a connection has been established with the remote end
//! point.

use std::sync::Arc;

use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::traits::Qp;
use portolan::provider::verbs::{QpState, RecvWr, SendData, SendFlags, SendOp, SendWr};
use portolan::wire::addr::{QKey, Qpn};

use crate::harness::*;
use crate::low::*;

#[test]
fn established_carries_the_reply_on_the_active_side_and_nothing_on_the_passive_side() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let _qp = verbs.give(&id);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    let reply = ConnParam {
        responder_resources: 2,
        initiator_depth: 1,
        ..param(&pattern(10, 3))
    };
    child.accept(&reply).unwrap();

    let event = next(&channel, EventType::Established);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    let conn = event.conn().unwrap();
    assert_eq!((conn.responder_resources, conn.initiator_depth), (1, 2));
    assert_eq!(conn.qp_num, reply.qp_num);
    assert_eq!(event.private_data().len(), 196);
    assert!(event.private_data().starts_with(&pattern(10, 3)));

    let event = next(&passive.channel, EventType::Established);
    assert_eq!((event.status(), event.id().number()), (0, child.number()));
    assert_eq!(event.conn(), Some(&ConnParam::default()));
}

#[test]
fn established_gives_a_datagram_id_everything_needed_to_send() {
    let port = free_port();
    let (here, there) = (start(port), start(port));
    let open = |provider| portolan::cm::EventChannel::open_on(provider).unwrap();
    let passive = Passive::listen_on(open(here), UDP);
    let (channel, id) = routed_on(open(there), UDP, passive.address);
    id.connect(&param(b"")).unwrap();
    let answer = ConnParam {
        qp_num: Qpn::new(0x4242),
        ..param(&pattern(136, 8))
    };
    passive.request().accept(&answer).unwrap();

    let event = next(&channel, EventType::Established);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    assert_eq!(event.conn(), None);
    let ud = event.ud().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (answer.qp_num, QKey::RDMA_CM));
    assert_eq!(event.private_data(), pattern(136, 8));
    let [path] = id.paths().unwrap()[..] else {
        panic!("one path");
    };
    let ah = &ud.ah_attr;
    assert_eq!((ah.dgid, ah.port_num), (path.dgid, 1));
    assert_eq!(
        (ah.flow_label, ah.hop_limit),
        (path.flow_label, path.hop_limit)
    );
    assert!(
        passive.channel.next_event_within(SHORT).is_err(),
        "the side that answered gets no event"
    );
}

#[test]
fn established_comes_with_the_first_message_of_a_peer_whose_rtu_is_missing() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.external();
    bring(&qp, &id, &[QpState::Init]);
    let named = |qp: &Arc<dyn Qp>| ConnParam {
        qp_num: qp.qpn(),
        ..param(b"")
    };
    id.connect(&named(&qp)).unwrap();
    let child = passive.request();
    let child_verbs = Verbs::of(&child.device().unwrap());
    let child_qp = child_verbs.external();
    // In RTR, so that arriving data are reported.
    bring(&child_qp, &child, &[QpState::Init, QpState::Rtr]);
    let receive = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    child_qp.post_recv(&receive).unwrap();
    child.accept(&named(&child_qp)).unwrap();
    next(&channel, EventType::ConnectResponse);
    bring(&qp, &id, &[QpState::Rtr, QpState::Rts]);
    assert!(passive.channel.next_event_within(SHORT).is_err());

    // A message instead of the RTU.
    let message = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        data: SendData::Inline(b""),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    qp.post_send(&message).unwrap();
    let event = next(&passive.channel, EventType::Established);
    assert_eq!((event.status(), event.id().number()), (0, child.number()));
    // Notifying by hand changes nothing, and neither does the RTU.
    child.notify_established().unwrap();
    id.establish().unwrap();
    assert!(passive.channel.next_event_within(SHORT).is_err());
}
