//! Ids with InfiniBand addresses, between two ports of an InfiniBand subnet.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

use portolan_cm::{BoundDevice, Cm, Config, IB_REQ_PRIVATE_DATA_MAX, Lids, MadPath, Transmit};
use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventParam, EventType, IdNumber, PathRecord, Service, UserId,
};
use portolan_provider::error::Cause;
use portolan_provider::verbs::{Mtu, QpType};
use portolan_provider::{Address, SockaddrIb};
use portolan_wire::cm::{CmMessage, RejectReason};
use portolan_wire::{Gid, PKey, PortSpace};

use crate::net::param;

const SERVICE_ID: u64 = 0x1000_0000_0000_0abc;
const SECOND: Duration = Duration::from_secs(1);
const NOW: Duration = SECOND;
const LISTENER: UserId = UserId(1);
const ACTIVE: UserId = UserId(2);
const CHILD: UserId = UserId(3);

fn service(qp_type: QpType) -> Service {
    Service {
        port_space: PortSpace::Ib,
        qp_type,
    }
}

fn gid(host: u16) -> Gid {
    Gid::from_ipv6(Ipv6Addr::new(0xfe80, 0, 0, 0, 2, 0xc903, 0x10, host + 1))
}

fn lid(host: u16) -> u16 {
    4 + host
}

fn address(gid: Gid) -> SockaddrIb {
    SockaddrIb {
        pkey: PKey::DEFAULT,
        flowinfo: 0,
        gid,
        sid: SERVICE_ID,
        sid_mask: u64::MAX,
        scope_id: 0,
    }
}

fn device(host: u16) -> BoundDevice {
    BoundDevice {
        device_index: 0,
        port_num: 1,
        sgid_index: 0,
        sgid: gid(host),
        node_guid: 0x2c9_0300_1000 + u64::from(host),
        mtu: Mtu::Mtu2048,
        ack_delay_exp: 15,
    }
}

/// The path from host 0 to host 1, as the subnet administrator returns it.
fn path() -> PathRecord {
    PathRecord {
        dgid: gid(1),
        sgid: gid(0),
        dlid: lid(1),
        slid: lid(0),
        flow_label: 0,
        hop_limit: 0,
        traffic_class: 0,
        pkey: PKey::DEFAULT,
        sl: 3,
        mtu: Mtu::Mtu2048,
        rate: 3,
        packet_lifetime: 18,
    }
}

/// The path of a message that arrives at `host` from the port with this LID: without a global route.
fn from_lid(host: u16, remote: u16) -> MadPath {
    MadPath {
        local: IpAddr::V6(gid(host).to_ipv6()),
        remote: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        scope_id: 0,
        device: device(host),
        lids: Some(Lids {
            local: lid(host),
            remote,
        }),
    }
}

struct Subnet {
    hosts: [Cm; 2],
    /// All messages sent.
    log: Vec<Transmit>,
}

impl Subnet {
    fn new() -> Self {
        Self {
            hosts: [1, 2].map(|seed| Cm::new(Config::default(), [seed; 32])),
            log: Vec::new(),
        }
    }

    /// A listener on host 1, and an id on host 0 with a route to it.
    fn with_route(qp_type: QpType) -> (Self, IdNumber) {
        let mut subnet = Self::new();
        let [active, passive] = &mut subnet.hosts;
        let listener = passive.create_id(LISTENER, service(qp_type)).unwrap();
        let local = address(gid(1));
        passive
            .bind_ib(NOW, listener, &local, Some(device(1)))
            .unwrap();
        passive.listen(NOW, listener, 8).unwrap();
        let id = active.create_id(ACTIVE, service(qp_type)).unwrap();
        active
            .resolve_ib_addr(NOW, id, &address(gid(1)), device(0))
            .unwrap();
        assert_eq!(subnet.event(0).event, EventType::AddrResolved);
        let active = &mut subnet.hosts[0];
        active.ib_route_resolved(NOW, id, SECOND, &path()).unwrap();
        assert_eq!(subnet.event(0).event, EventType::RouteResolved);
        (subnet, id)
    }

    /// Carries messages until there are no more.
    fn carry(&mut self) {
        for _ in 0..100 {
            let mut quiet = true;
            for host in [0, 1] {
                while let Some(transmit) = self.hosts[usize::from(host)].poll_transmit() {
                    quiet = false;
                    let lids = transmit.path.lids.expect("a path with LIDs");
                    assert_eq!((lids.local, lids.remote), (lid(host), lid(1 - host)));
                    let peer = &mut self.hosts[usize::from(1 - host)];
                    peer.handle_mad(NOW, &from_lid(1 - host, lids.local), &transmit.mad);
                    self.log.push(transmit);
                }
            }
            if quiet {
                return;
            }
        }
        panic!("the exchange does not end");
    }

    fn event(&mut self, host: usize) -> CmEvent {
        self.hosts[host].poll_event().expect("an event")
    }

    fn connect(&mut self, id: IdNumber, private_data: &[u8]) -> CmEvent {
        let param = param(0x100, private_data);
        self.hosts[0]
            .connect(NOW, id, &param, Ece::default())
            .unwrap();
        self.carry();
        let request = self.event(1);
        assert_eq!(request.event, EventType::ConnectRequest);
        request
    }
}

fn private_data(event: &CmEvent) -> &[u8] {
    match &event.param {
        EventParam::Conn(ConnParam { private_data, .. }) => private_data,
        EventParam::Ud(ud) => &ud.private_data,
        _ => &[],
    }
}

#[test]
fn a_connection_is_made_and_ended_by_lids_without_ip_addresses_in_its_private_data() {
    let (mut subnet, id) = Subnet::with_route(QpType::Rc);
    let request = subnet.connect(id, &[7; IB_REQ_PRIVATE_DATA_MAX]);
    assert_eq!(private_data(&request), [7; IB_REQ_PRIVATE_DATA_MAX]);
    let (_, message) = CmMessage::parse(&subnet.log[0].mad).unwrap();
    let CmMessage::Req(req) = message else {
        panic!("{message:?}")
    };
    assert_eq!(req.service_id.0, SERVICE_ID);
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (4, 5));
    assert_eq!(
        (req.primary.local_gid, req.primary.remote_gid),
        (gid(0), gid(1))
    );
    assert!(req.primary.subnet_local);
    assert_eq!((req.primary.service_level, subnet.log[0].sl), (3, 3));

    let child = request.id;
    subnet.hosts[1]
        .accept(NOW, child, CHILD, &param(0x200, b"yes"), Ece::default())
        .unwrap();
    subnet.carry();
    let response = subnet.event(0);
    assert_eq!(response.event, EventType::ConnectResponse);
    assert!(private_data(&response).starts_with(b"yes"));
    subnet.hosts[0].establish(NOW, id).unwrap();
    subnet.carry();
    assert_eq!(subnet.event(1).event, EventType::Established);

    subnet.hosts[1].disconnect(NOW, child).unwrap();
    subnet.carry();
    assert_eq!(subnet.event(0).event, EventType::Disconnected);
    subnet.hosts[0].disconnect(NOW, id).unwrap();
    subnet.carry();
    assert_eq!(subnet.event(1).event, EventType::Disconnected);
}

#[test]
fn a_rejection_brings_its_private_data() {
    let (mut subnet, id) = Subnet::with_route(QpType::Rc);
    let request = subnet.connect(id, b"");
    subnet.hosts[1]
        .reject(NOW, request.id, RejectReason::CONSUMER_DEFINED, b"no")
        .unwrap();
    subnet.carry();
    let rejected = subnet.event(0);
    assert_eq!(rejected.event, EventType::Rejected);
    assert!(private_data(&rejected).starts_with(b"no"));
}

#[test]
fn a_datagram_service_is_asked_for_its_queue_pair() {
    let (mut subnet, id) = Subnet::with_route(QpType::Ud);
    let request = subnet.connect(id, b"hello");
    assert!(private_data(&request).starts_with(b"hello"));
    subnet.hosts[1]
        .accept(NOW, request.id, CHILD, &param(0x345, b""), Ece::default())
        .unwrap();
    subnet.carry();
    let established = subnet.event(0);
    assert_eq!(established.event, EventType::Established);
    let EventParam::Ud(ud) = &established.param else {
        panic!("{established:?}")
    };
    assert_eq!(ud.qp_num.value(), 0x345);
}

#[test]
fn an_unknown_service_id_is_refused() {
    let (mut subnet, id) = Subnet::with_route(QpType::Rc);
    subnet.hosts[1] = Cm::new(Config::default(), [9; 32]);
    let param = param(0x100, b"");
    subnet.hosts[0]
        .connect(NOW, id, &param, Ece::default())
        .unwrap();
    subnet.carry();
    let rejected = subnet.event(0);
    let reason = i32::from(RejectReason::INVALID_SERVICE_ID.0);
    assert_eq!(
        (rejected.event, rejected.status),
        (EventType::Rejected, reason)
    );
}

#[test]
fn a_listener_at_every_port_takes_the_request_and_knows_its_port() {
    let (mut subnet, id) = Subnet::with_route(QpType::Rc);
    subnet.hosts[1] = Cm::new(Config::default(), [9; 32]);
    let passive = &mut subnet.hosts[1];
    let listener = passive.create_id(LISTENER, service(QpType::Rc)).unwrap();
    let everywhere = address(Gid::UNSPECIFIED);
    passive.bind_ib(NOW, listener, &everywhere, None).unwrap();
    passive.listen(NOW, listener, 8).unwrap();
    let request = subnet.connect(id, b"");
    let ends = subnet.hosts[1].addresses(request.id).unwrap();
    let gid_of = |address: Option<Address>| address.map(|address| address.gid());
    assert_eq!(gid_of(ends.local), Some(gid(1)));
    assert_eq!(gid_of(ends.remote), Some(gid(0)));
}

#[test]
fn messages_from_another_port_do_not_affect_the_connection() {
    let (mut subnet, id) = Subnet::with_route(QpType::Rc);
    let request = subnet.connect(id, b"");
    let child = request.id;
    subnet.hosts[1]
        .accept(NOW, child, CHILD, &param(0x200, b""), Ece::default())
        .unwrap();
    let rep = subnet.hosts[1].poll_transmit().expect("a reply");
    subnet.hosts[0].handle_mad(NOW, &from_lid(0, 77), &rep.mad);
    assert!(subnet.hosts[0].poll_event().is_none());
    subnet.hosts[0].handle_mad(NOW, &from_lid(0, lid(1)), &rep.mad);
    assert_eq!(subnet.event(0).event, EventType::ConnectResponse);
}

#[test]
fn a_request_on_another_path_than_its_own_is_refused() {
    let (mut subnet, id) = Subnet::with_route(QpType::Rc);
    let param = param(0x100, b"");
    subnet.hosts[0]
        .connect(NOW, id, &param, Ece::default())
        .unwrap();
    let req = subnet.hosts[0].poll_transmit().expect("a request");
    subnet.hosts[1].handle_mad(NOW, &from_lid(1, 77), &req.mad);
    let answer = subnet.hosts[1].poll_transmit().expect("a refusal");
    assert_eq!(answer.path.lids.map(|lids| lids.remote), Some(77));
    let (_, message) = CmMessage::parse(&answer.mad).unwrap();
    let CmMessage::Rej(rej) = message else {
        panic!("{message:?}")
    };
    assert_eq!(rej.reason, RejectReason::INVALID_GID);
    assert!(subnet.hosts[1].poll_event().is_none());
}

#[test]
fn addresses_without_a_gid_or_a_whole_service_id_are_refused() {
    let mut cm = Cm::new(Config::default(), [1; 32]);
    let mut id = || cm.create_id(ACTIVE, service(QpType::Rc)).unwrap();
    let ids = [id(), id(), id(), id()];
    let no_service = SockaddrIb {
        sid: 0,
        ..address(gid(1))
    };
    let half_a_service = SockaddrIb {
        sid_mask: !0xffff,
        ..address(gid(1))
    };
    let no_gid = address(Gid::UNSPECIFIED);
    for (id, destination) in ids.into_iter().zip([no_service, half_a_service, no_gid]) {
        let error = cm.resolve_ib_addr(NOW, id, &destination, device(0));
        let cause = error.unwrap_err();
        assert!(
            matches!(cause.cause, Cause::InvalidArgument { .. }),
            "{cause}"
        );
    }
    let [.., id] = ids;
    cm.resolve_ib_addr(NOW, id, &address(gid(1)), device(0))
        .unwrap();
    let elsewhere = PathRecord {
        dgid: gid(7),
        ..path()
    };
    let error = cm.ib_route_resolved(NOW, id, SECOND, &elsewhere);
    assert!(error.is_err());
}
