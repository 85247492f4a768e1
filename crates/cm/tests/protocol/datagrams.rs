//! Datagram services: lookup of the queue pair that serves a port (SIDR).

use std::net::SocketAddr;

use portolan_cm::{
    MadPath, SIDR_REP_PRIVATE_DATA_MAX, SIDR_REQ_PRIVATE_DATA_MAX, State, TableSizes,
};
use portolan_provider::Address;
use portolan_provider::cm::{Ece, EventType, IdNumber, Service, UserId};
use portolan_provider::error::Cause;
use portolan_provider::error::errno::EINVAL;
use portolan_provider::verbs::{AhAttr, QpAttrMask, QpState, QpType};
use portolan_wire::cm::{
    CmMessage, PrivateData, RejectReason, SidrRepRepr, SidrReqRepr, SidrStatus,
};
use portolan_wire::{Gid, PKey, PortSpace, QKey, Qpn};

use crate::net::*;

/// The first SIDR REQ, with its transaction id.
pub(crate) fn question(net: &Net) -> (u64, SidrReqRepr) {
    let found = net.log.iter().find_map(|passing| match passing.message {
        CmMessage::SidrReq(req) => Some((passing.tid, req)),
        _ => None,
    });
    found.expect("a SIDR REQ")
}

/// All SIDR REPs so far.
pub(crate) fn answers(net: &Net) -> Vec<SidrRepRepr> {
    let reps = net.log.iter().filter_map(|passing| match passing.message {
        CmMessage::SidrRep(rep) => Some(rep),
        _ => None,
    });
    reps.collect()
}

pub(crate) fn hand(
    net: &mut Net,
    host: usize,
    path: &MadPath,
    tid: u64,
    message: impl Into<CmMessage>,
) {
    let mut mad = [0; 256];
    message.into().emit(tid, &mut mad).unwrap();
    let now = net.now;
    net.cm(host).handle_mad(now, path, &mad);
    net.drain();
}

fn padded(data: &[u8], length: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(length, 0);
    padded
}

/// An id of host 0 whose question was answered with `rep`.
fn answered(net: &mut Net, rep: SidrRepRepr) -> IdNumber {
    let active = net.connecting(10, 0);
    net.drain();
    let (tid, req) = question(net);
    let rep = SidrRepRepr {
        request_id: req.request_id,
        service_id: req.service_id,
        ..rep
    };
    hand(net, 0, &path(0), tid, rep);
    active
}

#[test]
fn both_sides_get_the_same_events_as_on_linux() {
    let mut net = Net::datagrams();
    net.listen(0);
    let active = net.connecting(10, 0);
    net.exchange();

    let request = net.expect(1, EventType::ConnectRequest);
    assert_eq!((request.uid, request.status), (LISTENER_UID, 0));
    let asked = ud(&request);
    assert_eq!(SIDR_REQ_PRIVATE_DATA_MAX, 180);
    assert_eq!(*asked.private_data, padded(b"request", 180));
    assert_eq!((asked.qp_num, asked.qkey), (Qpn::new(0), QKey(0)));
    assert_eq!(asked.ah_attr.dgid, Gid::default());
    let addresses = net.cm(1).addresses(request.id).unwrap();
    let local = SocketAddr::new(ip(1), PORT);
    let remote = SocketAddr::new(ip(0), 40_000);
    assert_eq!(addresses.local, Some(Address::Inet(local)));
    assert_eq!(addresses.remote, Some(Address::Inet(remote)));
    assert_eq!(addresses.device_index, Some(0));

    net.accept(request.id);
    net.exchange();
    net.expect_silence(1);
    net.assert_state(1, request.id, State::SidrReplied);
    let established = net.expect(0, EventType::Established);
    assert_eq!(
        (established.uid, established.id, established.status),
        (UserId(10), active, 0)
    );
    let told = ud(&established);
    assert_eq!(SIDR_REP_PRIVATE_DATA_MAX, 136);
    assert_eq!(*told.private_data, padded(b"reply", 136));
    assert_eq!(
        (told.qp_num, told.qkey),
        (Qpn::new(0x20), QKey(0x0123_4567))
    );
    let [route] = net.cm(0).paths(active).unwrap()[..] else {
        panic!("one path")
    };
    assert_eq!(
        told.ah_attr,
        AhAttr {
            dgid: Gid::from(ip(1)),
            sgid_index: 1,
            flow_label: route.flow_label,
            hop_limit: 64,
            traffic_class: 0,
            sl: 0,
            port_num: 1,
            local_route: None,
        }
    );
    assert_ne!(route.flow_label, 0);
    net.assert_state(0, active, State::SidrResolved);

    // Two messages and no timer.
    assert_eq!(net.log.len(), 2);
    assert_eq!(
        [net.cm(0).poll_timeout(), net.cm(1).poll_timeout()],
        [None, None]
    );
}

#[test]
fn the_question_carries_service_partition_and_addresses() {
    for (port_space, service_id) in [
        (PortSpace::Udp, 0x0111_1D2F),
        (PortSpace::Ipoib, 0x0002_1D2F),
        (PortSpace::Ib, 0x013F_1D2F),
    ] {
        let mut net = Net::datagrams();
        net.service = Service {
            port_space,
            qp_type: QpType::Ud,
        };
        net.listen(0);
        net.served();
        let (_, req) = question(&net);
        assert_eq!(req.service_id.0, service_id);
        assert_eq!(req.pkey, PKey::DEFAULT);
        let header = portolan_wire::cma::CmaHeader::parse(&req.private_data).unwrap();
        assert_eq!(
            (header.src_addr(), header.port, header.dst_addr()),
            (ip(0), 40_000, ip(1))
        );
        assert_eq!(answers(&net)[0].service_id.0, service_id);
    }
}

#[test]
fn vendor_options_travel_with_the_answer() {
    let ece = Ece {
        vendor_id: 0x02_15b3,
        options: 0x1234_5678,
    };
    let mut net = Net::datagrams();
    net.listen(0);
    let (_, passive) = net.requested();
    let now = net.now;
    net.cm(1)
        .accept(now, passive, UserId(20), &param(0x20, b""), ece)
        .unwrap();
    net.exchange();
    let established = net.expect(0, EventType::Established);
    assert_eq!(
        (established.ece.vendor_id, established.ece.options),
        (ece.vendor_id, ece.options)
    );
}

#[test]
fn the_listeners_key_is_sent_to_every_peer() {
    let mut net = Net::datagrams();
    let listener = net.listen(0);
    net.cm(1).set_qkey(listener, QKey(0x77)).unwrap();
    let (_, passive) = net.requested();
    net.accept(passive);
    net.exchange();
    assert_eq!(ud(&net.expect(0, EventType::Established)).qkey, QKey(0x77));
    let (attr, _) = net.cm(1).init_qp_attr(passive, QpState::Init).unwrap();
    assert_eq!(attr.qkey, QKey(0x77));
}

#[test]
fn a_key_is_set_once_is_not_zero_and_is_only_for_datagrams() {
    let mut net = Net::datagrams();
    let id = net.resolved(10);
    net.cm(0).set_qkey(id, QKey(5)).unwrap();
    net.cm(0).set_qkey(id, QKey(5)).unwrap();
    let connected = net.cm(0).create_id(UserId(1), RC).unwrap();
    for (id, qkey) in [(id, QKey(6)), (id, QKey(0)), (connected, QKey(5))] {
        let error = net.cm(0).set_qkey(id, qkey).unwrap_err();
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
    }
}

#[test]
fn an_answer_with_a_key_that_cannot_be_used_ends_in_addr_error() {
    let success = |qkey| SidrRepRepr {
        status: SidrStatus::SUCCESS,
        qpn: Qpn::new(0x20),
        qkey,
        ..SidrRepRepr::default()
    };
    let mut net = Net::datagrams();
    let active = answered(&mut net, success(QKey(0)));
    let error = net.expect(0, EventType::AddrError);
    assert_eq!((error.id, error.status), (active, -EINVAL));
    net.assert_state(0, active, State::Closed);

    let mut net = Net::datagrams();
    let active = net.resolved(10);
    net.cm(0).set_qkey(active, QKey(5)).unwrap();
    net.listen(0);
    let now = net.now;
    net.cm(0)
        .connect(now, active, &param(0, b""), Ece::default())
        .unwrap();
    net.exchange();
    let passive = net.expect(1, EventType::ConnectRequest).id;
    net.accept(passive);
    net.exchange();
    assert_eq!(net.expect(0, EventType::AddrError).status, -EINVAL);
}

#[test]
fn a_rejection_is_unreachable_with_its_status_and_private_data() {
    let mut net = Net::datagrams();
    net.listen(0);
    let (active, passive) = net.requested();
    let now = net.now;
    net.cm(1)
        .reject(now, passive, RejectReason::CONSUMER_DEFINED, b"not today")
        .unwrap();
    net.exchange();
    let unreachable = net.expect(0, EventType::Unreachable);
    assert_eq!((unreachable.id, unreachable.status), (active, 2));
    assert_eq!(*ud(&unreachable).private_data, padded(b"not today", 136));
    net.assert_state(0, active, State::Closed);
    net.expect_silence(1);
}

#[test]
fn a_port_without_a_service_in_its_port_space_is_unsupported() {
    let mut net = Net::datagrams();
    // The same port for connections, and for another port space.
    for service in [
        RC,
        Service {
            port_space: PortSpace::Ipoib,
            qp_type: QpType::Ud,
        },
    ] {
        net.service = service;
        net.listen(0);
    }
    net.service = UDP;
    let active = net.connecting(10, 0);
    net.exchange();
    let unreachable = net.expect(0, EventType::Unreachable);
    assert_eq!((unreachable.id, unreachable.status), (active, 1));
    net.expect_silence(1);
    assert_eq!(net.cm(1).table_sizes().ids, 2);
}

#[test]
fn a_question_that_a_listener_cannot_take_is_rejected_without_an_event() {
    let mut net = Net::datagrams();
    net.listen(0);
    net.disturb(|_| Fate::Drop);
    net.connecting(10, 0);
    net.drain();
    let (tid, req) = question(&net);
    let with = |at: usize, value: u8| {
        let mut data = *req.private_data.as_array();
        data[at] = value;
        SidrReqRepr {
            private_data: PrivateData::new(data),
            ..req
        }
    };
    let other_partition = SidrReqRepr {
        pkey: PKey(0x8001),
        ..req
    };
    let refused = [
        ("another version", with(0, 1)),
        ("another IP version", with(1, 0x50)),
        ("another source", with(19, 99)),
        ("another destination", with(35, 99)),
        ("another partition", other_partition),
    ];
    for (number, (what, req)) in refused.into_iter().enumerate() {
        hand(&mut net, 1, &path(1), tid + 1, req);
        let answers = answers(&net);
        assert_eq!(answers.len(), number + 1, "{what}");
        assert_eq!(answers[number].status, SidrStatus::REJECT, "{what}");
        assert_eq!(answers[number].request_id, req.request_id, "{what}");
        net.expect_silence(1);
    }
    hand(&mut net, 1, &path(1), tid + 1, req);
    net.expect(1, EventType::ConnectRequest);
}

#[test]
fn connections_and_datagrams_do_not_reach_each_others_listeners() {
    let rc = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Rc,
    };
    let ud = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Ud,
    };
    for (listening, asking, event, status) in [
        (rc, ud, EventType::Unreachable, 2),
        (
            ud,
            rc,
            EventType::Rejected,
            RejectReason::INVALID_TRANSPORT_TYPE.0.into(),
        ),
    ] {
        let mut net = Net::new();
        net.service = listening;
        net.listen(0);
        net.service = asking;
        net.connecting(10, 0x10);
        net.exchange();
        assert_eq!(net.expect(0, event).status, status);
        net.expect_silence(1);
    }
}

#[test]
fn private_data_may_fill_its_field_and_no_more() {
    let mut net = Net::datagrams();
    net.listen(0);
    let active = net.resolved(10);
    let now = net.now;
    let none = Ece::default();
    let error = net
        .cm(0)
        .connect(now, active, &param(0, &[7; 181]), none)
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    net.cm(0)
        .connect(now, active, &param(0, &[7; 180]), none)
        .unwrap();
    net.exchange();
    let request = net.expect(1, EventType::ConnectRequest);
    assert_eq!(*ud(&request).private_data, [7; 180]);
    let (passive, uid) = (request.id, UserId(20));
    let error = net
        .cm(1)
        .accept(now, passive, uid, &param(2, &[8; 137]), none)
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    let error = net
        .cm(1)
        .accept(now, passive, uid, &param(1, b""), none)
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    let reason = RejectReason::CONSUMER_DEFINED;
    let error = net
        .cm(1)
        .reject(now, passive, reason, &[8; 137])
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    net.cm(1)
        .accept(now, passive, uid, &param(2, &[8; 136]), none)
        .unwrap();
    net.exchange();
    assert_eq!(
        *ud(&net.expect(0, EventType::Established)).private_data,
        [8; 136]
    );
}

#[test]
fn destroying_one_side_sends_only_the_message_that_the_other_waits_for() {
    // While asking: no event, and a late answer is dropped.
    let mut net = Net::datagrams();
    net.listen(0);
    let (active, passive) = net.requested();
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.accept(passive);
    net.exchange();
    net.expect_silence(0);
    assert_eq!(net.cm(0).table_sizes(), TableSizes::default());
    assert_eq!(net.log.len(), 2);

    // Asked but not answered: it is rejected. The same for those that wait at the listener.
    for with_listener in [false, true] {
        let mut net = Net::datagrams();
        let listener = net.listen(0);
        let (_, passive) = net.requested();
        let now = net.now;
        let destroyed = if with_listener { listener } else { passive };
        net.cm(1).destroy_id(now, destroyed).unwrap();
        net.exchange();
        assert_eq!(net.expect(0, EventType::Unreachable).status, 2);
        assert!(net.cm(1).state(passive).is_err());
        assert_eq!(net.cm(1).table_sizes().remote_requests, 0);
    }

    // Answered: no message is needed.
    let mut net = Net::datagrams();
    net.listen(0);
    let (active, passive) = net.served();
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.cm(1).disconnect(now, passive).unwrap();
    net.cm(0).destroy_id(now, active).unwrap();
    net.cm(1).destroy_id(now, passive).unwrap();
    net.exchange();
    net.expect_silence(0);
    assert_eq!(net.log.len(), 2);
}

#[test]
fn a_datagram_queue_pair_needs_a_device_and_no_peer() {
    let mut net = Net::datagrams();
    let id = net.cm(0).create_id(UserId(1), UDP).unwrap();
    let error = net.cm(0).init_qp_attr(id, QpState::Init).unwrap_err();
    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
    let now = net.now;
    let local = SocketAddr::new(ip(0), PORT);
    net.cm(0).bind(now, id, local, Some(device(0))).unwrap();
    let (attr, mask) = net.cm(0).init_qp_attr(id, QpState::Init).unwrap();
    assert_eq!(
        (attr.state, attr.qkey, attr.port_num),
        (QpState::Init, QKey::RDMA_CM, 1)
    );
    assert_eq!(
        mask,
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY
    );
    let (attr, mask) = net.cm(0).init_qp_attr(id, QpState::Rtr).unwrap();
    assert_eq!((attr.state, mask), (QpState::Rtr, QpAttrMask::STATE));
    let (attr, mask) = net.cm(0).init_qp_attr(id, QpState::Rts).unwrap();
    assert_eq!(
        (attr.state, mask),
        (QpState::Rts, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
    );
    let error = net.cm(0).init_qp_attr(id, QpState::Sqd).unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
}
