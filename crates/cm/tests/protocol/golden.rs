//! Requests that Linux 6.1 sent, taken from a capture.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use portolan_cm::{Cm, Config, MadPath, Query, ResolvedAddress};
use portolan_provider::Address;
use portolan_provider::cm::{ConnParam, Ece, EventType, UserId};
use portolan_wire::cm::{AttributeId, CmMessage, SidrRepRepr, SidrReqRepr};
use portolan_wire::cma::CmaHeader;

use crate::net::*;

const CAPTURE: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../wire/tests/golden/rxe-linux-6.1.pcap"
));

/// Length of Ethernet, IPv4 (without options), UDP, BTH and DETH in front of a MAD.
const MAD_AT: usize = 14 + 20 + 8 + 12 + 8;

/// Every CM MAD in the capture: source address and bytes.
fn captured() -> Vec<(Ipv4Addr, [u8; 256])> {
    let mut reader = pcap_file::pcap::PcapReader::new(CAPTURE).unwrap();
    let mut mads = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap().data;
        let Some(mad) = packet.get(MAD_AT..MAD_AT + 256) else {
            continue;
        };
        let source: [u8; 4] = packet[26..30].try_into().unwrap();
        if CmMessage::parse(mad).is_ok() {
            mads.push((source.into(), mad.try_into().unwrap()));
        }
    }
    mads
}

fn of_kind(kind: AttributeId) -> impl Iterator<Item = (Ipv4Addr, [u8; 256], CmMessage)> {
    captured().into_iter().filter_map(move |(source, mad)| {
        let (_, message) = CmMessage::parse(&mad).unwrap();
        (message.attribute_id() == kind).then_some((source, mad, message))
    })
}

/// The captured machine 192.168.7.1, which received all requests.
fn server() -> (Cm, MadPath) {
    let local = IpAddr::from([192, 168, 7, 1]);
    let remote = IpAddr::from([192, 168, 7, 2]);
    let path = MadPath {
        local,
        remote,
        scope_id: 0,
        device: device_with(local, 77),
        lids: None,
    };
    (Cm::new(Config::default(), [3; 32]), path)
}

#[test]
fn every_request_of_linux_reaches_its_listener_with_its_addresses() {
    let mut requests = 0;
    for (source, mad, message) in of_kind(AttributeId::Req) {
        let CmMessage::Req(req) = message else {
            unreachable!("filtered")
        };
        let (mut cm, path) = server();
        assert_eq!(IpAddr::from(source), path.remote);
        let now = Duration::from_secs(1);
        let listener = cm.create_id(LISTENER_UID, RC).unwrap();
        let port = req.service_id.port();
        cm.bind(
            now,
            listener,
            SocketAddr::new([0, 0, 0, 0].into(), port),
            None,
        )
        .unwrap();
        cm.listen(now, listener, 0).unwrap();
        cm.handle_mad(now, &path, &mad);
        assert_eq!(cm.poll_transmit(), None, "not refused");
        let request = cm.poll_event().expect("a request");
        assert_eq!(request.event, EventType::ConnectRequest);
        assert_eq!(conn(&request).qp_num, req.local_qpn);
        let addresses = cm.addresses(request.id).unwrap();
        assert_eq!(
            addresses.local,
            Some(Address::Inet(SocketAddr::new(path.local, port)))
        );
        let remote = addresses.remote.and_then(|remote| remote.inet()).unwrap();
        assert_eq!(remote.ip(), path.remote);
        assert_ne!(remote.port(), 0);
        requests += 1;
    }
    assert_eq!(
        requests, 4,
        "rping, ucmatose twice, rping without a listener"
    );
}

#[test]
fn a_request_without_a_listener_is_refused_byte_for_byte_as_by_linux() {
    let (_, rej, _) = of_kind(AttributeId::Rej)
        .next()
        .expect("the capture has a REJ");
    let tid = &rej[8..16];
    let (_, req, _) = of_kind(AttributeId::Req)
        .find(|(_, req, _)| &req[8..16] == tid)
        .unwrap();
    let (mut cm, path) = server();
    cm.handle_mad(Duration::from_secs(1), &path, &req);
    let answer = cm.poll_transmit().expect("a refusal");
    assert_eq!(answer.mad, rej);
    assert_eq!(
        (answer.path.local, answer.path.remote),
        (path.local, path.remote)
    );
}

#[test]
fn a_stray_dreq_is_answered_byte_for_byte_as_by_linux() {
    let mut answered = 0;
    for (source, dreq, _) in of_kind(AttributeId::Dreq) {
        let tid = &dreq[8..16];
        let drep = of_kind(AttributeId::Drep).find(|(_, drep, _)| &drep[8..16] == tid);
        let Some((_, drep, _)) = drep else { continue };
        let (mut cm, mut path) = server();
        path.remote = source.into();
        cm.handle_mad(Duration::from_secs(1), &path, &dreq);
        assert_eq!(cm.poll_transmit().expect("a DREP").mad, drep);
        answered += 1;
    }
    assert!(answered > 0, "the capture has a DREQ that was answered");
}

/// The captured udaddy's question and the answer, with their contents.
fn captured_resolution() -> ([u8; 256], SidrReqRepr, [u8; 256], SidrRepRepr) {
    let (_, question, message) = of_kind(AttributeId::SidrReq)
        .next()
        .expect("the capture has a SIDR REQ");
    let CmMessage::SidrReq(req) = message else {
        unreachable!("filtered")
    };
    let (_, answer, message) = of_kind(AttributeId::SidrRep)
        .find(|(_, answer, _)| answer[8..16] == question[8..16])
        .expect("and its answer");
    let CmMessage::SidrRep(rep) = message else {
        unreachable!("filtered")
    };
    (question, req, answer, rep)
}

#[test]
fn a_datagram_service_answers_byte_for_byte_as_linux_answered() {
    let (question, req, answer, rep) = captured_resolution();
    let (mut cm, path) = server();
    let now = Duration::from_secs(1);
    let listener = cm.create_id(LISTENER_UID, UDP).unwrap();
    let any = SocketAddr::new([0, 0, 0, 0].into(), req.service_id.port());
    cm.bind(now, listener, any, None).unwrap();
    cm.listen(now, listener, 0).unwrap();
    cm.handle_mad(now, &path, &question);
    let request = cm.poll_event().expect("a request");
    assert_eq!(request.event, EventType::ConnectRequest);
    assert_eq!(*ud(&request).private_data, req.private_data[36..]);
    let param = ConnParam {
        private_data: Box::from(&rep.private_data[..]),
        qp_num: rep.qpn,
        ..ConnParam::default()
    };
    cm.accept(now, request.id, UserId(1), &param, Ece::default())
        .unwrap();
    assert_eq!(cm.poll_transmit().expect("an answer").mad, answer);
}

#[test]
fn a_datagram_service_is_asked_for_byte_for_byte_as_linux_asks() {
    let (question, req, ..) = captured_resolution();
    let header = CmaHeader::parse(&req.private_data).unwrap();
    let mut cm = Cm::new(Config::default(), [3; 32]);
    let now = Duration::from_secs(1);
    let source = SocketAddr::new(header.src_addr(), header.port);
    let destination = SocketAddr::new(header.dst_addr(), req.service_id.port());
    let id = cm.create_id(UserId(1), UDP).unwrap();
    let second = Duration::from_secs(1);
    cm.resolve_addr(now, id, None, destination, second).unwrap();
    let Some(Query::Address { query, .. }) = cm.poll_query() else {
        panic!("a query")
    };
    let answer = ResolvedAddress {
        source,
        destination,
        device: device_with(source.ip(), 77),
        dgid: destination.ip().into(),
        hop_limit: 64,
        neighbour: None,
    };
    cm.address_resolved(now, id, query, Ok(answer)).unwrap();
    cm.resolve_route(now, id, second).unwrap();
    let param = ConnParam {
        private_data: Box::from(&req.private_data[36..]),
        ..ConnParam::default()
    };
    cm.connect(now, id, &param, Ece::default()).unwrap();
    let mut asked = cm.poll_transmit().expect("a question").mad;
    // Each side chooses its own transaction and request ids.
    assert_ne!(asked[8..16], question[8..16]);
    asked[8..16].copy_from_slice(&question[8..16]);
    asked[24..28].copy_from_slice(&question[24..28]);
    assert_eq!(asked, question);
}
