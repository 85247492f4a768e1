//! The handshake without faults, and what both ends learn from it.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::State;
use portolan_provider::cm::{Ece, EventType, Service, UserId};
use portolan_provider::verbs::{Access, Mtu, QpAttrMask, QpState, QpType};
use portolan_provider::{Address, Cause};
use portolan_wire::cm::{AttributeId, CmMessage, RejectReason, TransportService};
use portolan_wire::cma::CmaHeader;
use portolan_wire::{Gid, PortSpace, Qpn, ServiceId};

use crate::net::*;

#[test]
fn a_connection_is_made_used_and_ended_from_the_active_side() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    net.assert_state(0, active, State::Established);
    net.assert_state(1, passive, State::Established);

    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    assert_eq!(net.expect(1, EventType::Disconnected).status, 0);
    net.expect_silence(0);
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    assert_eq!(net.expect(0, EventType::Disconnected).status, 0);
    net.run_for(Duration::from_secs(5));
    net.expect(0, EventType::TimewaitExit);
    net.expect(1, EventType::TimewaitExit);

    let kinds: Vec<_> = net
        .log
        .iter()
        .map(|passing| (passing.from, passing.kind()))
        .collect();
    use AttributeId::*;
    assert_eq!(kinds, [(0, Req), (1, Rep), (0, Rtu), (0, Dreq), (1, Drep)]);
    assert!(
        net.hosts
            .iter()
            .all(|host| host.cm.poll_timeout().is_none())
    );
}

#[test]
fn a_connection_can_be_ended_from_the_passive_side() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    net.expect(0, EventType::Disconnected);
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    net.expect(1, EventType::Disconnected);
}

#[test]
fn private_data_and_parameters_arrive_with_depths_seen_from_the_receiver() {
    let mut net = Net::new();
    net.listen(0);
    net.connecting(10, 0x10);
    net.exchange();
    let request = net.expect(1, EventType::ConnectRequest);
    assert_eq!(request.uid, LISTENER_UID);
    let param = conn(&request);
    assert_eq!(param.private_data.len(), 56);
    assert_eq!(&param.private_data[..7], b"request");
    assert!(param.private_data[7..].iter().all(|byte| *byte == 0));
    // Sent as responder 4, initiator 2.
    assert_eq!((param.responder_resources, param.initiator_depth), (2, 4));
    assert_eq!((param.retry_count, param.rnr_retry_count), (7, 6));
    assert_eq!(
        (param.flow_control, param.srq, param.qp_num),
        (true, false, Qpn::new(0x10))
    );

    net.accept(request.id);
    net.exchange();
    let response = net.expect(0, EventType::ConnectResponse);
    assert_eq!(response.uid, UserId(10));
    let param = conn(&response);
    assert_eq!(param.private_data.len(), 196);
    assert_eq!(&param.private_data[..5], b"reply");
    assert_eq!((param.responder_resources, param.initiator_depth), (2, 4));
    assert_eq!((param.rnr_retry_count, param.qp_num), (6, Qpn::new(0x20)));

    let now = net.now;
    net.cm(0).establish(now, response.id).unwrap();
    net.exchange();
    let established = net.expect(1, EventType::Established);
    assert_eq!(established.uid, UserId(20));
    assert!(
        conn(&established).private_data.is_empty(),
        "an RTU's data are not reported"
    );
}

#[test]
fn the_request_on_the_wire_is_what_linux_would_send() {
    let mut net = Net::new();
    net.listen(0);
    net.connecting(10, 0x10);
    net.drain();
    let CmMessage::Req(req) = net.log[0].message else {
        panic!("{}", net.log[0].message)
    };
    assert_eq!(req.service_id, ServiceId::from_port(PortSpace::Tcp, PORT));
    assert_eq!(req.local_ca_guid, device(0).node_guid);
    assert_eq!(
        (
            req.remote_cm_response_timeout,
            req.local_cm_response_timeout
        ),
        (20, 20)
    );
    assert_eq!(
        (req.max_cm_retries, req.retry_count, req.rnr_retry_count),
        (15, 7, 6)
    );
    assert_eq!((req.path_mtu.0, req.pkey.0), (Mtu::Mtu1024 as u8, 0xFFFF));
    assert_eq!(req.transport, TransportService::Rc);
    let path = req.primary;
    assert_eq!(
        (path.local_gid, path.remote_gid),
        (Gid::from(ip(0)), Gid::from(ip(1)))
    );
    assert_eq!(
        (path.local_lid, path.remote_lid, path.subnet_local),
        (0xFFFF, 0xFFFF, false)
    );
    assert_eq!((path.hop_limit, path.local_ack_timeout), (64, 19));
    assert_eq!(path.flow_label, (40_000 * 31 + u32::from(PORT)) & 0xF_FFFF);
    assert!(req.alternate.is_absent());
    let header = CmaHeader::parse(&req.private_data).unwrap();
    assert_eq!(
        (header.src_addr(), header.port, header.dst_addr()),
        (ip(0), 40_000, ip(1))
    );
}

#[test]
fn the_queue_pairs_of_both_ends_get_matching_numbers() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let attrs = |host: usize, id, state| net.hosts[host].cm.init_qp_attr(id, state).unwrap();
    let (active_rtr, mask) = attrs(0, active, QpState::Rtr);
    let (active_rts, _) = attrs(0, active, QpState::Rts);
    let (passive_rtr, _) = attrs(1, passive, QpState::Rtr);
    let (passive_rts, rts_mask) = attrs(1, passive, QpState::Rts);
    assert_eq!(active_rtr.rq_psn, passive_rts.sq_psn);
    assert_eq!(passive_rtr.rq_psn, active_rts.sq_psn);
    assert_ne!(active_rtr.rq_psn, passive_rtr.rq_psn);
    assert_eq!(
        (active_rtr.dest_qpn, passive_rtr.dest_qpn),
        (Qpn::new(0x20), Qpn::new(0x10))
    );
    assert_eq!(
        (active_rtr.path_mtu, passive_rtr.path_mtu),
        (Mtu::Mtu1024, Mtu::Mtu1024)
    );
    // The acceptor sent responder 4, initiator 2; the active side has them swapped.
    assert_eq!(
        (active_rtr.max_dest_rd_atomic, active_rts.max_rd_atomic),
        (2, 4)
    );
    assert_eq!(
        (passive_rtr.max_dest_rd_atomic, passive_rts.max_rd_atomic),
        (4, 2)
    );
    assert_eq!((active_rts.retry_cnt, passive_rts.retry_cnt), (7, 7));
    assert_eq!((active_rts.timeout, passive_rts.timeout), (19, 19));
    let av = active_rtr.ah_attr;
    assert_eq!(
        (av.dgid, av.sgid_index, av.hop_limit),
        (Gid::from(ip(1)), 1, 64)
    );
    assert_eq!(passive_rtr.ah_attr.dgid, Gid::from(ip(0)));
    assert_eq!(passive_rtr.ah_attr.flow_label, av.flow_label);
    assert!(mask.contains(QpAttrMask::AV | QpAttrMask::RQ_PSN | QpAttrMask::MAX_DEST_RD_ATOMIC));
    assert!(rts_mask.contains(QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT));
    let (init, _) = attrs(1, passive, QpState::Init);
    assert_eq!(
        init.access,
        Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
    );
}

#[test]
fn before_its_answer_the_passive_side_knows_what_the_peer_needs() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.requested();
    // The request had responder 4, initiator 2.
    let (rtr, _) = net.cm(1).init_qp_attr(passive, QpState::Rtr).unwrap();
    let (rts, _) = net.cm(1).init_qp_attr(passive, QpState::Rts).unwrap();
    assert_eq!((rtr.max_dest_rd_atomic, rts.max_rd_atomic), (2, 4));
    assert_eq!((rts.retry_cnt, rts.rnr_retry), (7, 6));
}

#[test]
fn attributes_that_are_not_known_yet_are_an_error_of_state() {
    let mut net = Net::new();
    net.listen(0);
    let active = net.resolved(10);
    net.cm(0).init_qp_attr(active, QpState::Init).unwrap();
    let early = net.cm(0).init_qp_attr(active, QpState::Rtr).unwrap_err();
    assert!(matches!(early.cause, Cause::InvalidState { .. }), "{early}");
    let odd = net.cm(0).init_qp_attr(active, QpState::Sqd).unwrap_err();
    assert!(matches!(odd.cause, Cause::InvalidArgument { .. }), "{odd}");
}

#[test]
fn addresses_and_paths_are_known_to_both_ends_and_mirror_each_other() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let (ours, theirs) = (
        net.cm(0).addresses(active).unwrap(),
        net.cm(1).addresses(passive).unwrap(),
    );
    assert_eq!(
        ours.local,
        Some(Address::Inet(SocketAddr::new(ip(0), 40_000)))
    );
    assert_eq!(
        ours.remote,
        Some(Address::Inet(SocketAddr::new(ip(1), PORT)))
    );
    assert_eq!((theirs.local, theirs.remote), (ours.remote, ours.local));
    assert_eq!((theirs.sgid, theirs.dgid), (ours.dgid, ours.sgid));
    let (path, back) = (
        net.cm(0).paths(active).unwrap(),
        net.cm(1).paths(passive).unwrap(),
    );
    assert_eq!((path.len(), back.len()), (1, 1));
    assert_eq!((path[0].sgid, path[0].dgid), (back[0].dgid, back[0].sgid));
    assert_eq!(path[0].packet_lifetime, back[0].packet_lifetime);
}

#[test]
fn a_rejection_carries_its_reason_and_private_data() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.requested();
    let now = net.now;
    net.cm(1)
        .reject(now, passive, RejectReason::CONSUMER_DEFINED, b"not today")
        .unwrap();
    net.exchange();
    let rejected = net.expect(0, EventType::Rejected);
    assert_eq!((rejected.id, rejected.status), (active, 28));
    let data = &conn(&rejected).private_data;
    assert_eq!((data.len(), &data[..9]), (148, &b"not today"[..]));
    net.assert_state(0, active, State::Closed);
    net.assert_state(1, passive, State::Closed);
    net.expect_silence(1);
}

#[test]
fn the_active_side_can_reject_the_reply() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.replied();
    let now = net.now;
    net.cm(0)
        .reject(
            now,
            active,
            RejectReason::CONSUMER_DEFINED,
            b"changed my mind",
        )
        .unwrap();
    net.exchange();
    let rejected = net.expect(1, EventType::Rejected);
    assert_eq!(
        (rejected.id, rejected.uid, rejected.status),
        (passive, UserId(20), 28)
    );
}

#[test]
fn data_before_the_rtu_establishes_the_connection_and_the_late_rtu_changes_nothing() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.replied();
    let now = net.now;
    net.cm(1).notify_established(now, passive).unwrap();
    net.drain();
    net.expect(1, EventType::Established);
    net.cm(0).establish(now, active).unwrap();
    net.exchange();
    net.expect_silence(1);
    // Reported twice, as a queue pair may do.
    net.cm(1).notify_established(now, passive).unwrap();
    net.drain();
    net.expect_silence(1);
}

#[test]
fn a_host_connects_to_itself() {
    let mut net = Net::new();
    let now = net.now;
    let listener = net.cm(0).create_id(LISTENER_UID, RC).unwrap();
    net.cm(0)
        .bind(now, listener, SocketAddr::new(ip(0), PORT), Some(device(0)))
        .unwrap();
    net.cm(0).listen(now, listener, 0).unwrap();
    let active = net.cm(0).create_id(UserId(2), RC).unwrap();
    let own = SocketAddr::new(ip(0), PORT);
    net.cm(0)
        .resolve_addr(now, active, None, own, Duration::from_secs(2))
        .unwrap();
    net.drain();
    net.expect(0, EventType::AddrResolved);
    net.cm(0)
        .resolve_route(now, active, Duration::from_secs(2))
        .unwrap();
    net.cm(0)
        .connect(now, active, &param(0x10, b""), Ece::default())
        .unwrap();
    net.exchange();
    net.expect(0, EventType::RouteResolved);
    let passive = net.expect(0, EventType::ConnectRequest).id;
    let now = net.now;
    net.cm(0)
        .accept(now, passive, UserId(3), &param(0x11, b""), Ece::default())
        .unwrap();
    net.exchange();
    net.expect(0, EventType::ConnectResponse);
    let now = net.now;
    net.cm(0).establish(now, active).unwrap();
    net.exchange();
    assert_eq!(net.expect(0, EventType::Established).id, passive);
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    assert_eq!(net.expect(0, EventType::Disconnected).id, passive);
    let now = net.now;
    net.cm(0).disconnect(now, passive).unwrap();
    net.exchange();
    assert_eq!(net.expect(0, EventType::Disconnected).id, active);
}

#[test]
fn unreliable_connections_are_marked_and_lack_reliable_attributes() {
    let uc = Service {
        port_space: PortSpace::Tcp,
        qp_type: QpType::Uc,
    };
    let mut net = Net::new();
    let now = net.now;
    let listener = net.cm(1).create_id(LISTENER_UID, uc).unwrap();
    net.cm(1)
        .bind(
            now,
            listener,
            SocketAddr::new([0, 0, 0, 0].into(), PORT),
            None,
        )
        .unwrap();
    net.cm(1).listen(now, listener, 0).unwrap();
    let active = net.cm(0).create_id(UserId(2), uc).unwrap();
    net.resolve(active);
    net.cm(0)
        .connect(now, active, &param(0x10, b""), Ece::default())
        .unwrap();
    net.exchange();
    let passive = net.expect(1, EventType::ConnectRequest).id;
    let (_, mask) = net.cm(1).init_qp_attr(passive, QpState::Rts).unwrap();
    assert_eq!(mask, QpAttrMask::STATE | QpAttrMask::SQ_PSN);
    let CmMessage::Req(req) = net.log[0].message else {
        panic!("{}", net.log[0].message)
    };
    assert_eq!(req.transport, TransportService::Uc);
}

#[test]
fn the_vendors_options_travel_both_ways() {
    let ece = Ece {
        vendor_id: 0x02_15b3,
        options: 0x1234_5678,
    };
    let mut net = Net::new();
    net.listen(0);
    let active = net.resolved(10);
    let now = net.now;
    net.cm(0)
        .connect(now, active, &param(0x10, b""), ece)
        .unwrap();
    net.exchange();
    let request = net.expect(1, EventType::ConnectRequest);
    assert_eq!(
        (request.ece.vendor_id, request.ece.options),
        (ece.vendor_id, ece.options)
    );
    let now = net.now;
    net.cm(1)
        .accept(now, request.id, UserId(20), &param(0x20, b""), ece)
        .unwrap();
    net.exchange();
    let response = net.expect(0, EventType::ConnectResponse);
    assert_eq!(
        (response.ece.vendor_id, response.ece.options),
        (ece.vendor_id, ece.options)
    );
}
