//! RDMA_CM_EVENT_TIMEWAIT_EXIT: the QP associated with a connection has exited its timewait state and
//! is now ready to be re-used.

use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::verbs::{QpAttr, QpAttrMask, QpState};

use super::assert_bare;
use crate::harness::*;
use crate::low::*;

#[test]
fn timewait_exit_comes_to_both_sides_after_disconnected() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    next(&channel, EventType::ConnectResponse);
    id.establish().unwrap();
    next(&passive.channel, EventType::Established);

    id.disconnect().unwrap();
    next(&passive.channel, EventType::Disconnected);
    child.disconnect().unwrap();
    next(&channel, EventType::Disconnected);
    for (channel, id) in [(&channel, &id), (&passive.channel, &child)] {
        let event = next(channel, EventType::TimewaitExit);
        assert_eq!(event.id().number(), id.number());
        assert_bare(&event, 0);
    }
}

#[test]
fn after_timewait_exit_the_queue_pair_connects_again() {
    let passive = Passive::listen();
    let (first_channel, first) = routed(passive.address);
    let verbs = Verbs::of(&first.device().unwrap());
    let qp = verbs.external();
    let named = ConnParam {
        qp_num: qp.qpn(),
        ..param(b"")
    };
    let connect = |channel: &portolan::cm::EventChannel, id: &portolan::cm::CmId| {
        bring(&qp, id, &[QpState::Init]);
        id.connect(&named).unwrap();
        let child = passive.request();
        child.accept(&param(b"")).unwrap();
        next(channel, EventType::ConnectResponse);
        bring(&qp, id, &[QpState::Rtr, QpState::Rts]);
        id.establish().unwrap();
        next(&passive.channel, EventType::Established);
        child
    };
    let child = connect(&first_channel, &first);
    first.disconnect().unwrap();
    next(&passive.channel, EventType::Disconnected);
    child.disconnect().unwrap();
    next(&first_channel, EventType::Disconnected);
    // Not at once: packets in flight get time to leave the network.
    next(&first_channel, EventType::TimewaitExit);
    next(&passive.channel, EventType::TimewaitExit);
    first.destroy(PATIENCE).unwrap();

    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    qp.modify(&reset, QpAttrMask::STATE).unwrap();
    let (second_channel, second) = routed(passive.address);
    connect(&second_channel, &second);
    assert_eq!(state_of(&qp), QpState::Rts);
}
