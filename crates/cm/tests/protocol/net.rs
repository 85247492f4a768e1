//! Two hosts on a virtual clock, connected by a network that tests can disturb.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_cm::{
    BoundDevice, Cm, Config, GroupQuery, MadPath, Neighbour, Query, ResolvedAddress, State,
    Transmit,
};
use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventParam, EventType, IdNumber, Service, UdParam, UserId,
};
use portolan_provider::verbs::{Mtu, QpType};
use portolan_wire::cm::{AttributeId, CmMessage};
use portolan_wire::{Gid, PortSpace, Qpn};

pub(crate) const RC: Service = Service {
    port_space: PortSpace::Tcp,
    qp_type: QpType::Rc,
};
pub(crate) const UDP: Service = Service {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};
pub(crate) const PORT: u16 = 7471;
pub(crate) const LISTENER_UID: UserId = UserId(1);
pub(crate) const LATENCY: Duration = Duration::from_micros(50);

/// What the network does with a message.
pub(crate) enum Fate {
    Deliver,
    Drop,
    Duplicate,
}

/// A message in flight: the sending host (0 or 1), the time, and the content.
pub(crate) struct Passing {
    pub(crate) from: usize,
    pub(crate) at: Duration,
    pub(crate) tid: u64,
    pub(crate) message: CmMessage,
}

impl Passing {
    pub(crate) fn kind(&self) -> AttributeId {
        self.message.attribute_id()
    }
}

type Fault = Box<dyn FnMut(&Passing) -> Fate>;

pub(crate) struct Host {
    pub(crate) cm: Cm,
    pub(crate) events: VecDeque<CmEvent>,
}

pub(crate) struct Net {
    pub(crate) now: Duration,
    pub(crate) hosts: [Host; 2],
    /// The service of ids created below.
    pub(crate) service: Service,
    /// Every message sent, in order.
    pub(crate) log: Vec<Passing>,
    flying: Vec<(Duration, u64, usize, Transmit)>,
    sequence: u64,
    fault: Fault,
}

pub(crate) fn ip(host: usize) -> IpAddr {
    IpAddr::from([192, 168, 7, host as u8 + 1])
}

pub(crate) fn device(host: usize) -> BoundDevice {
    device_with(ip(host), 0x0200_00ff_fe00_0000 + host as u64)
}

pub(crate) fn device_with(ip: IpAddr, node_guid: u64) -> BoundDevice {
    BoundDevice {
        device_index: 0,
        port_num: 1,
        sgid_index: 1,
        sgid: Gid::from(ip),
        node_guid,
        mtu: Mtu::Mtu1024,
        ack_delay_exp: 15,
    }
}

/// The other host's entry in `host`'s neighbour table.
pub(crate) fn neighbour(host: usize) -> Neighbour {
    Neighbour {
        interface_index: 4,
        address: ip(1 - host),
        link_address: [2, 0, 0, 0, 0, 1 - host as u8],
    }
}

/// The path between the hosts, as seen from `host`.
pub(crate) fn path(host: usize) -> MadPath {
    MadPath {
        local: ip(host),
        remote: ip(1 - host),
        scope_id: 0,
        device: device(host),
        lids: None,
    }
}

pub(crate) fn param(qpn: u32, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.into(),
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        qp_num: Qpn::new(qpn),
    }
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::with_config(Config::default())
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let host = |index: usize| Host {
            cm: Cm::new(config.clone(), [index as u8 + 1; 32]),
            events: VecDeque::new(),
        };
        Self {
            now: Duration::from_secs(1),
            hosts: [host(0), host(1)],
            service: RC,
            log: Vec::new(),
            flying: Vec::new(),
            sequence: 0,
            fault: Box::new(|_| Fate::Deliver),
        }
    }

    /// Hosts with datagram ids.
    pub(crate) fn datagrams() -> Self {
        Self {
            service: UDP,
            ..Self::new()
        }
    }

    pub(crate) fn disturb(&mut self, fault: impl FnMut(&Passing) -> Fate + 'static) {
        self.fault = Box::new(fault);
    }

    pub(crate) fn cm(&mut self, host: usize) -> &mut Cm {
        &mut self.hosts[host].cm
    }

    /// Drains both engines: sends messages, answers queries, keeps events.
    pub(crate) fn drain(&mut self) {
        for from in 0..2 {
            while let Some(query) = self.hosts[from].cm.poll_query() {
                self.answer(from, query);
            }
            while let Some(query) = self.hosts[from].cm.poll_group_query() {
                if let GroupQuery::Join(membership) = query {
                    let (now, number) = (self.now, membership.number);
                    // If there is no room for the event, the join stays unanswered, which is harmless.
                    let _ = self.hosts[from].cm.group_joined(now, number, Ok(()));
                }
            }
            while let Some(transmit) = self.hosts[from].cm.poll_transmit() {
                self.launch(from, transmit);
            }
            while let Some(event) = self.hosts[from].cm.poll_event() {
                self.hosts[from].events.push_back(event);
            }
        }
    }

    fn answer(&mut self, host: usize, query: Query) {
        let Query::Address {
            id,
            query,
            source,
            destination,
            ..
        } = query;
        let port = source.map_or(40_000, |source| source.port());
        let answer = ResolvedAddress {
            source: SocketAddr::new(ip(host), if port == 0 { 40_000 } else { port }),
            destination,
            device: device(host),
            dgid: Gid::from(destination.ip()),
            hop_limit: 64,
            neighbour: Some(neighbour(host)),
        };
        self.hosts[host]
            .cm
            .address_resolved(self.now, id, query, Ok(answer))
            .unwrap();
    }

    fn launch(&mut self, from: usize, transmit: Transmit) {
        let (header, message) =
            CmMessage::parse(&transmit.mad).expect("engines send valid messages");
        let passing = Passing {
            from,
            at: self.now,
            tid: header.tid,
            message,
        };
        let fate = (self.fault)(&passing);
        self.log.push(passing);
        let mut fly = |delay| {
            self.sequence += 1;
            self.flying.push((
                self.now + LATENCY + delay,
                self.sequence,
                from,
                transmit.clone(),
            ));
        };
        match fate {
            Fate::Deliver => fly(Duration::ZERO),
            Fate::Drop => {}
            Fate::Duplicate => {
                fly(Duration::ZERO);
                fly(Duration::from_micros(1));
            }
        }
    }

    /// Runs everything that is due before `until`, and sets the clock to it.
    pub(crate) fn run_until(&mut self, until: Duration) {
        self.drain();
        loop {
            let flight = self.flying.iter().map(|flying| flying.0).min();
            let timers = self.hosts.iter().filter_map(|host| host.cm.poll_timeout());
            let Some(next) = timers.chain(flight).min().filter(|next| *next <= until) else {
                break;
            };
            self.now = self.now.max(next);
            self.deliver_due();
            for host in &mut self.hosts {
                host.cm.handle_timeout(self.now);
            }
            self.drain();
        }
        self.now = self.now.max(until);
    }

    fn deliver_due(&mut self) {
        let now = self.now;
        let (mut due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|flying| flying.0 <= now);
        self.flying = later;
        due.sort_by_key(|(at, sequence, ..)| (*at, *sequence));
        for (_, _, from, transmit) in due {
            let to = if transmit.path.remote == ip(from) {
                from
            } else {
                1 - from
            };
            assert_eq!(
                transmit.path.remote,
                ip(to),
                "messages go to the other host or to oneself"
            );
            let arrived = MadPath {
                local: transmit.path.remote,
                remote: transmit.path.local,
                scope_id: 0,
                device: device(to),
                lids: None,
            };
            self.hosts[to].cm.handle_mad(now, &arrived, &transmit.mad);
        }
    }

    /// Runs for a time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs long enough to exchange messages, but too short for any repetition.
    pub(crate) fn exchange(&mut self) {
        self.run_for(LATENCY * 20);
    }

    /// Takes the next event of a host, which must be of this type.
    #[track_caller]
    pub(crate) fn expect(&mut self, host: usize, event: EventType) -> CmEvent {
        let next = self.hosts[host].events.pop_front();
        let next = next.unwrap_or_else(|| panic!("host {host}: {event} expected, nothing came"));
        assert_eq!(next.event, event, "host {host}: {next:?}");
        next
    }

    /// Runs until a host has an event, which must be of this type; at most ten seconds.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, host: usize, event: EventType) -> CmEvent {
        let deadline = self.now + Duration::from_secs(10);
        while self.hosts[host].events.is_empty() && self.now < deadline {
            self.run_for(Duration::from_millis(10));
        }
        self.expect(host, event)
    }

    #[track_caller]
    pub(crate) fn expect_silence(&self, host: usize) {
        assert!(
            self.hosts[host].events.is_empty(),
            "host {host}: {:?}",
            self.hosts[host].events
        );
    }

    /// Number of messages of this kind that a host sent.
    pub(crate) fn sent(&self, from: usize, kind: AttributeId) -> usize {
        self.log
            .iter()
            .filter(|passing| passing.from == from && passing.kind() == kind)
            .count()
    }

    /// A listener on host 1.
    pub(crate) fn listen(&mut self, backlog: i32) -> IdNumber {
        self.listen_on(SocketAddr::new([0, 0, 0, 0].into(), PORT), backlog)
    }

    pub(crate) fn listen_on(&mut self, local: SocketAddr, backlog: i32) -> IdNumber {
        let (now, service) = (self.now, self.service);
        let cm = self.cm(1);
        let id = cm.create_id(LISTENER_UID, service).unwrap();
        let bound = (!local.ip().is_unspecified()).then(|| device(1));
        cm.bind(now, id, local, bound).unwrap();
        cm.listen(now, id, backlog).unwrap();
        id
    }

    /// An id of host 0 with a resolved route to host 1.
    pub(crate) fn resolved(&mut self, uid: u64) -> IdNumber {
        let service = self.service;
        let id = self.cm(0).create_id(UserId(uid), service).unwrap();
        self.resolve(id);
        id
    }

    pub(crate) fn resolve(&mut self, id: IdNumber) {
        self.resolve_address(id);
        let (now, timeout) = (self.now, Duration::from_secs(2));
        self.cm(0).resolve_route(now, id, timeout).unwrap();
        self.drain();
        self.expect(0, EventType::RouteResolved);
    }

    pub(crate) fn resolve_address(&mut self, id: IdNumber) {
        let destination = SocketAddr::new(ip(1), PORT);
        let (now, timeout) = (self.now, Duration::from_secs(2));
        self.cm(0)
            .resolve_addr(now, id, None, destination, timeout)
            .unwrap();
        self.drain();
        self.expect(0, EventType::AddrResolved);
    }

    /// An id of host 0 that has sent its REQ.
    pub(crate) fn connecting(&mut self, uid: u64, qpn: u32) -> IdNumber {
        let id = self.resolved(uid);
        let now = self.now;
        self.cm(0)
            .connect(now, id, &param(qpn, b"request"), Ece::default())
            .unwrap();
        id
    }

    /// Both ends of a request that host 1's owner has taken but not answered.
    pub(crate) fn requested(&mut self) -> (IdNumber, IdNumber) {
        let active = self.connecting(10, 0x10);
        self.exchange();
        let request = self.expect(1, EventType::ConnectRequest);
        (active, request.id)
    }

    pub(crate) fn accept(&mut self, passive: IdNumber) {
        let now = self.now;
        self.cm(1)
            .accept(
                now,
                passive,
                UserId(20),
                &param(0x20, b"reply"),
                Ece::default(),
            )
            .unwrap();
    }

    /// Both ends of a request whose REP host 0's owner has taken; the RTU is not sent yet.
    pub(crate) fn replied(&mut self) -> (IdNumber, IdNumber) {
        let (active, passive) = self.requested();
        self.accept(passive);
        self.exchange();
        self.expect(0, EventType::ConnectResponse);
        (active, passive)
    }

    /// Both ends of a connection.
    pub(crate) fn connected(&mut self) -> (IdNumber, IdNumber) {
        let (active, passive) = self.replied();
        let now = self.now;
        self.cm(0).establish(now, active).unwrap();
        self.exchange();
        self.expect(1, EventType::Established);
        (active, passive)
    }

    /// Both ends of a resolved datagram service.
    pub(crate) fn served(&mut self) -> (IdNumber, IdNumber) {
        let (active, passive) = self.requested();
        self.accept(passive);
        self.exchange();
        self.expect(0, EventType::Established);
        (active, passive)
    }

    #[track_caller]
    pub(crate) fn assert_state(&self, host: usize, id: IdNumber, state: State) {
        assert_eq!(self.hosts[host].cm.state(id).unwrap(), state);
    }
}

pub(crate) fn ud(event: &CmEvent) -> &UdParam {
    match &event.param {
        EventParam::Ud(ud) => ud,
        other => panic!("expected datagram parameters, found {other:?}"),
    }
}

pub(crate) fn conn(event: &CmEvent) -> &ConnParam {
    match &event.param {
        EventParam::Conn(conn) => conn,
        other => panic!("expected connection parameters, found {other:?}"),
    }
}
