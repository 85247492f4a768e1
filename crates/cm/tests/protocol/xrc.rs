//! Extended reliable connections: a sending end and a receiving end (IBTA annex A14).

use portolan_cm::State;
use portolan_provider::cm::{Ece, EventType, IdNumber, Service};
use portolan_provider::verbs::{QpAttrMask, QpState, QpType};
use portolan_wire::cm::{
    CmMessage, EXTENDED_XRC, RejectReason, RepRepr, ReqRepr, TransportService,
};
use portolan_wire::{PortSpace, Qpn};

use crate::net::{Net, conn, param};

fn service(qp_type: QpType) -> Service {
    Service {
        port_space: PortSpace::Ib,
        qp_type,
    }
}

/// A request from host 0 to a listener on host 1. Returns the connecting id.
fn requested(active: QpType, listening: QpType) -> (Net, IdNumber) {
    let mut net = Net::new();
    net.service = service(listening);
    net.listen(0);
    net.service = service(active);
    let id = net.connecting(10, 0x10);
    net.exchange();
    (net, id)
}

fn req(net: &Net) -> ReqRepr {
    let found = net.log.iter().find_map(|passing| match passing.message {
        CmMessage::Req(req) => Some(req),
        _ => None,
    });
    found.expect("a REQ")
}

fn rep(net: &Net) -> RepRepr {
    let found = net.log.iter().find_map(|passing| match passing.message {
        CmMessage::Rep(rep) => Some(rep),
        _ => None,
    });
    found.expect("a REP")
}

#[test]
fn a_request_and_its_reply_have_the_same_fields_as_on_linux() {
    let (mut net, active) = requested(QpType::XrcSend, QpType::XrcRecv);
    let request = net.expect(1, EventType::ConnectRequest);
    let req = req(&net);
    assert_eq!(req.transport, TransportService::Extended);
    assert_eq!(req.extended_transport, EXTENDED_XRC);
    assert_eq!(req.local_qpn, Qpn::new(0x10));
    // A sending end has no responder resources, and its peer never sends.
    let responders = (
        req.responder_resources,
        req.retry_count,
        req.rnr_retry_count,
    );
    assert_eq!((responders, req.srq), ((0, 0, 0), false));
    assert_eq!(conn(&request).qp_num, Qpn::new(0x10));

    net.accept(request.id);
    net.exchange();
    let response = net.expect(0, EventType::ConnectResponse);
    let rep = rep(&net);
    assert_eq!((rep.local_qpn, rep.local_eecn), (Qpn::new(0), 0x20));
    assert_eq!((rep.srq, rep.initiator_depth), (true, 0));
    assert_eq!(conn(&response).qp_num, Qpn::new(0x20));

    let attr = |net: &mut Net, host, id, state| net.cm(host).init_qp_attr(id, state).unwrap();
    use QpAttrMask as M;
    let connected = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let (rtr, mask) = attr(&mut net, 0, active, QpState::Rtr);
    assert_eq!((rtr.dest_qpn, mask), (Qpn::new(0x20), connected));
    let (_, mask) = attr(&mut net, 0, active, QpState::Rts);
    let requester = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    assert_eq!(mask, M::STATE | M::SQ_PSN | requester);
    let (rtr, mask) = attr(&mut net, 1, request.id, QpState::Rtr);
    let responder = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    assert_eq!(
        (rtr.dest_qpn, mask),
        (Qpn::new(0x10), connected | responder)
    );
    let (_, mask) = attr(&mut net, 1, request.id, QpState::Rts);
    assert_eq!(mask, M::STATE | M::SQ_PSN | M::TIMEOUT);

    let now = net.now;
    net.cm(0).establish(now, active).unwrap();
    net.exchange();
    net.expect(1, EventType::Established);
    net.assert_state(0, active, State::Established);
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    net.expect(1, EventType::Disconnected);
}

#[test]
fn only_an_end_that_receives_serves_one_that_sends() {
    for (active, listening) in [
        (QpType::XrcSend, QpType::Rc),
        (QpType::XrcSend, QpType::XrcSend),
        (QpType::Rc, QpType::XrcRecv),
        (QpType::Uc, QpType::XrcRecv),
    ] {
        let (mut net, _) = requested(active, listening);
        net.expect(0, EventType::Rejected);
        let reason = net.log.iter().find_map(|passing| match passing.message {
            CmMessage::Rej(rej) => Some(rej.reason),
            _ => None,
        });
        assert_eq!(
            reason,
            Some(RejectReason::INVALID_TRANSPORT_TYPE),
            "{active} to {listening}"
        );
    }
}

#[test]
fn an_end_that_receives_does_not_connect() {
    let mut net = Net::new();
    net.service = service(QpType::XrcRecv);
    let id = net.resolved(10);
    let now = net.now;
    let refused = net
        .cm(0)
        .connect(now, id, &param(0x10, b""), Ece::default());
    assert!(refused.unwrap_err().to_string().contains("XRC_RECV"));
}
