//! Connections that the peer does not confirm: how many there may be, which one is displaced, and who learns of
//! it.

use std::net::IpAddr;
use std::time::Duration;

use portolan_cm::{Cm, Config, DropReason, MadPath, State, TableSizes};
use portolan_provider::cm::{CmEvent, Ece, EventType, IdNumber, UserId};
use portolan_wire::cm::{
    CmMessage, PrivateData, RejMessage, RejectReason, ReqRepr, RtuRepr, SidrReqRepr,
};
use portolan_wire::cma::CmaHeader;
use portolan_wire::{Gid, PKey, PortSpace, Qpn, ServiceId};

use crate::net::*;

const GRACE: Duration = Duration::from_millis(250);

/// A listening engine to which strangers send requests.
struct Server {
    cm: Cm,
    now: Duration,
    /// An ordinary REQ, to be modified.
    req: ReqRepr,
}

/// Places for eight half-open connections at each of two listeners, twelve in total.
fn config() -> Config {
    Config {
        max_half_open_per_listener: 8,
        max_half_open: 12,
        half_open_grace: GRACE,
        ..Config::default()
    }
}

fn stranger(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

impl Server {
    fn new(config: Config) -> Self {
        let mut net = Net::with_config(config);
        net.listen(0);
        net.disturb(|_| Fate::Drop);
        net.connecting(10, 0x10);
        net.drain();
        let CmMessage::Req(req) = net.log[0].message else {
            panic!("a REQ")
        };
        let (now, [_, host]) = (net.now, net.hosts);
        Self {
            cm: host.cm,
            now,
            req,
        }
    }

    /// Opens a second listener.
    fn listen_at(&mut self, port: u16) {
        let id = self.cm.create_id(UserId(port.into()), RC).unwrap();
        let local = (IpAddr::from([0, 0, 0, 0]), port).into();
        self.cm.bind(self.now, id, local, None).unwrap();
        self.cm.listen(self.now, id, 0).unwrap();
    }

    /// A REQ from a stranger. `number` is its communication id and queue pair number.
    fn ask_at(&mut self, port: u16, host: u8, number: u32) {
        let from = stranger(host);
        let mut private_data = [0; 92];
        let header = CmaHeader::new(from, 40_000, ip(1)).unwrap();
        header.emit(&mut private_data).unwrap();
        let mut req = ReqRepr {
            local_comm_id: number,
            local_qpn: Qpn::new(0x100 + number),
            service_id: ServiceId::from_port(PortSpace::Tcp, port),
            private_data: PrivateData::new(private_data),
            ..self.req
        };
        req.primary.local_gid = Gid::from(from);
        self.hear(host, req);
    }

    fn ask(&mut self, host: u8, number: u32) {
        self.ask_at(PORT, host, number);
    }

    fn hear(&mut self, host: u8, message: impl Into<CmMessage>) {
        let mut mad = [0; 256];
        message.into().emit(u64::from(host), &mut mad).unwrap();
        let path = MadPath {
            remote: stranger(host),
            ..path(1)
        };
        self.cm.handle_mad(self.now, &path, &mad);
    }

    /// Takes the next event as its owner.
    fn take(&mut self) -> Option<CmEvent> {
        let event = self.cm.poll_event()?;
        if event.event == EventType::ConnectRequest {
            self.cm.request_taken(event.id);
        }
        Some(event)
    }

    /// Takes and accepts every request. Returns the ids, indexed by their numbers.
    fn accept_all(&mut self) -> Vec<IdNumber> {
        let mut accepted = Vec::new();
        while let Some(event) = self.take() {
            if event.event != EventType::ConnectRequest {
                continue;
            }
            let (uid, param) = (UserId(event.id.0.into()), param(0x20, b""));
            let result = self
                .cm
                .accept(self.now, event.id, uid, &param, Ece::default());
            result.unwrap();
            accepted.push(event.id);
        }
        accepted
    }

    fn messages(&mut self) -> Vec<CmMessage> {
        let mads = std::iter::from_fn(|| self.cm.poll_transmit());
        mads.map(|transmit| CmMessage::parse(&transmit.mad).unwrap().1)
            .collect()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.cm.counters().dropped(reason)
    }

    /// Checks that nothing is left of the children in any state.
    fn assert_all_forgotten(&mut self, children: &[IdNumber]) {
        for child in children {
            self.cm.destroy_id(self.now, *child).unwrap();
        }
        let (ids, listeners) = (
            self.cm.table_sizes().listeners,
            self.cm.table_sizes().listeners,
        );
        let remembered = self.cm.table_sizes().remembered;
        let expected = TableSizes {
            ids,
            listeners,
            remembered,
            ..TableSizes::default()
        };
        assert_eq!(self.cm.table_sizes(), expected);
        assert_eq!(self.cm.poll_timeout(), None);
    }
}

#[test]
fn beyond_the_limit_the_oldest_accepted_connection_is_displaced_silently_and_its_owner_hears() {
    let mut server = Server::new(config());
    let mut children = Vec::new();
    for number in 0..8 {
        server.ask(number, number.into());
        children.extend(server.accept_all());
        server.now += Duration::from_millis(1);
    }
    assert_eq!(server.messages().len(), 8, "a REP to each");
    server.now += GRACE;
    server.ask(8, 8);
    let told = server.take().unwrap();
    assert_eq!((told.event, told.id), (EventType::Unreachable, children[0]));
    assert_eq!(told.status, -103, "ECONNABORTED");
    assert_eq!(server.cm.state(children[0]).unwrap(), State::Closed);
    assert_eq!(server.messages(), [], "no message is sent to it");
    children.extend(server.accept_all());
    assert_eq!(server.cm.table_sizes().half_open, 8);
    assert_eq!(server.dropped(DropReason::Displaced), 1);
    server.assert_all_forgotten(&children);
}

#[test]
fn an_established_connection_does_not_count_as_half_open() {
    let mut server = Server::new(config());
    let mut children = Vec::new();
    for number in 0..100 {
        server.ask(number as u8, number);
        let [child] = server.accept_all()[..] else {
            panic!("one request")
        };
        server.cm.notify_established(server.now, child).unwrap();
        children.push(child);
    }
    assert_eq!(server.cm.table_sizes().half_open, 0);
    assert_eq!(server.dropped(DropReason::Displaced), 0);
    let established = |child: &&IdNumber| server.cm.state(**child) == Ok(State::Established);
    assert_eq!(children.iter().filter(established).count(), 100);
}

#[test]
fn while_all_are_recent_a_new_request_is_dropped_and_its_copy_is_accepted_later() {
    let mut server = Server::new(config());
    for number in 0..8 {
        server.ask(number, number.into());
    }
    let children = server.accept_all();
    server.messages();
    server.ask(8, 8);
    assert_eq!(server.dropped(DropReason::HalfOpenFull), 1);
    assert_eq!((server.take(), server.messages()), (None, vec![]));
    server.now += GRACE;
    server.ask(8, 8);
    let late = server.accept_all();
    assert_eq!(late.len(), 1);
    server.assert_all_forgotten(&[children, late].concat());
}

#[test]
fn a_displaced_peer_that_retries_gets_a_new_connection_and_one_that_confirms_is_rejected() {
    let mut server = Server::new(config());
    for number in 0..8 {
        server.ask(number, number.into());
    }
    let children = server.accept_all();
    let CmMessage::Rep(first) = server.messages()[0] else {
        panic!("a REP")
    };
    server.now += GRACE;
    server.ask(8, 8);
    server.accept_all();
    server.messages();
    // Its REP arrived; only its RTU was slow.
    server.hear(
        0,
        RtuRepr {
            local_comm_id: 0,
            remote_comm_id: first.local_comm_id,
            ..RtuRepr::default()
        },
    );
    let assert_rejected = |server: &mut Server| {
        let [CmMessage::Rej(rej)] = server.messages()[..] else {
            panic!("a REJ")
        };
        assert_eq!(
            (rej.message, rej.reason, rej.remote_comm_id),
            (RejMessage::Other, RejectReason::INVALID_COMM_ID, 0)
        );
    };
    assert_rejected(&mut server);
    // The id still belongs to its owner, who can destroy it without waiting.
    server.cm.destroy_id(server.now, children[0]).unwrap();
    server.hear(
        0,
        RtuRepr {
            local_comm_id: 0,
            remote_comm_id: first.local_comm_id,
            ..RtuRepr::default()
        },
    );
    assert_rejected(&mut server);
    // Its REP was lost.
    server.ask(0, 0);
    assert_eq!(server.accept_all().len(), 1);
    let [CmMessage::Rep(rep)] = server.messages()[..] else {
        panic!("a REP")
    };
    assert_ne!(rep.local_comm_id, first.local_comm_id);
}

#[test]
fn a_displaced_child_that_was_not_taken_leaves_no_trace() {
    let mut server = Server::new(config());
    for number in 0..8 {
        server.ask(number, number.into());
    }
    // One event has been polled but not taken.
    let offered = server.cm.poll_event().unwrap();
    assert_eq!(server.cm.poll_displaced(), None);
    server.now += GRACE;
    server.ask(8, 8);
    server.ask(9, 9);
    assert_eq!(server.cm.poll_displaced(), Some(offered.id));
    let second = server.cm.poll_displaced().unwrap();
    assert_eq!(server.cm.poll_displaced(), None);
    assert!(server.cm.state(offered.id).is_err() && server.cm.state(second).is_err());
    assert_eq!(server.cm.table_sizes().ids, 1 + 8);
    let left = server.accept_all();
    assert_eq!(left.len(), 8);
    assert!(!left.contains(&second), "its event is removed too");
    server.messages();
    server.assert_all_forgotten(&left);
}

#[test]
fn a_request_that_was_taken_but_not_answered_is_withdrawn() {
    let mut server = Server::new(config());
    for number in 0..8 {
        server.ask(number, number.into());
    }
    let first = server.take().unwrap().id;
    server.now += GRACE;
    server.ask(8, 8);
    assert_eq!(server.cm.state(first).unwrap(), State::Closed);
    let late = server.cm.accept(
        server.now,
        first,
        UserId(9),
        &param(0x20, b""),
        Ece::default(),
    );
    assert!(late.is_err());
    server.cm.destroy_id(server.now, first).unwrap();
    assert_eq!(server.messages(), []);
}

#[test]
fn a_displaced_peer_that_was_sent_an_mra_is_rejected_since_it_would_not_retry_for_a_minute() {
    let mut server = Server::new(config());
    for number in 0..8 {
        server.ask(number, number.into());
    }
    server.ask(0, 0);
    let [CmMessage::Mra(_)] = server.messages()[..] else {
        panic!("an MRA")
    };
    server.now += GRACE;
    server.ask(8, 8);
    let [CmMessage::Rej(rej)] = server.messages()[..] else {
        panic!("a REJ")
    };
    assert_eq!(
        (rej.message, rej.reason),
        (RejMessage::Req, RejectReason::NO_RESOURCES)
    );
}

#[test]
fn all_listeners_together_are_bounded_as_well() {
    let mut server = Server::new(config());
    server.listen_at(PORT + 1);
    for number in 0..6 {
        server.ask(number, number.into());
        server.ask_at(PORT + 1, number, 0x100 + u32::from(number));
    }
    assert_eq!(server.cm.table_sizes().half_open, 12);
    server.now += GRACE;
    server.ask(20, 20);
    assert_eq!(server.cm.table_sizes().half_open, 12);
    assert_eq!(server.dropped(DropReason::Displaced), 1);
}

#[test]
fn a_host_that_floods_displaces_only_its_own_requests() {
    let mut server = Server::new(config());
    server.ask(1, 0x1000);
    let [honest] = server.accept_all()[..] else {
        panic!("one request")
    };
    for number in 0..1000 {
        server.now += Duration::from_millis(40);
        server.ask(2, number);
        server.accept_all();
    }
    assert_eq!(server.cm.state(honest).unwrap(), State::RepSent);
    assert!(server.dropped(DropReason::Displaced) > 900);
}

#[test]
fn a_host_with_most_places_yields_to_others_at_once() {
    let mut server = Server::new(config());
    for number in 0..1000 {
        server.ask(2, number);
        server.accept_all();
    }
    assert_eq!(server.cm.table_sizes().half_open, 8);
    // Without any time having passed.
    server.ask(1, 0x1000);
    assert_eq!(server.accept_all().len(), 1);
    // But only down to half.
    for host in 3..20 {
        server.ask(host, 0x1000 + u32::from(host));
    }
    assert_eq!(server.accept_all().len(), 3);
}

#[test]
fn a_full_backlog_has_room_for_a_host_whose_requests_are_fewer() {
    let mut server = Server::new(Config {
        max_backlog: 4,
        ..config()
    });
    for number in 0..100 {
        server.ask(2, number);
    }
    assert_eq!(server.dropped(DropReason::BacklogFull), 96);
    server.ask(1, 0x1000);
    server.ask(1, 0x1001);
    // Two each: the next one is dropped, from any sender.
    server.ask(1, 0x1002);
    server.ask(2, 0x1003);
    assert_eq!(server.dropped(DropReason::BacklogFull), 98);
    let requests: Vec<_> = std::iter::from_fn(|| server.take()).collect();
    let of = |host| {
        let is_its = |event: &&CmEvent| {
            let addresses = server.cm.addresses(event.id).unwrap();
            addresses
                .remote
                .and_then(|remote| remote.inet())
                .unwrap()
                .ip()
                == stranger(host)
        };
        requests.iter().filter(is_its).count()
    };
    assert_eq!((of(1), of(2)), (2, 2));
}

#[test]
fn an_honest_client_is_served_amid_ten_times_as_many_forged_requests_as_there_are_places() {
    // 2000 forged requests a second for ten seconds, each from another host, and a client every 100 ms.
    let mut server = Server::new(Config::default());
    let places = Config::default().max_half_open_per_listener;
    let (mut established, mut asked) = (0, 0);
    for number in 0..20_000u32 {
        server.now += Duration::from_micros(500);
        let host = (number % 250) as u8;
        server.ask(host, 0x10_0000 + number);
        if number % 200 == 0 {
            server.ask(251, number);
            asked += 1;
        }
        while let Some(event) = server.take() {
            match event.event {
                EventType::ConnectRequest => {
                    let (uid, param) = (UserId(event.id.0.into()), param(0x20, b""));
                    let accepted =
                        server
                            .cm
                            .accept(server.now, event.id, uid, &param, Ece::default());
                    accepted.unwrap();
                    let remote = server.cm.addresses(event.id).unwrap().remote;
                    if remote.and_then(|remote| remote.inet()).unwrap().ip() == stranger(251) {
                        server.cm.notify_established(server.now, event.id).unwrap();
                        established += 1;
                    }
                }
                EventType::Unreachable => {
                    server.cm.destroy_id(server.now, event.id).unwrap();
                }
                EventType::Established => {}
                other => panic!("{other}"),
            }
        }
        server.cm.handle_timeout(server.now);
        server.messages();
        let sizes = server.cm.table_sizes();
        assert!(sizes.half_open <= places && sizes.ids <= 1 + places + established);
    }
    assert_eq!((asked, established), (100, 100));
    let displaced = server.dropped(DropReason::Displaced);
    assert_eq!(displaced, 20_000 - places as u64);
    assert_eq!(server.dropped(DropReason::HalfOpenFull), 0);
}

#[test]
fn questions_for_datagrams_have_the_same_bound() {
    let mut net = Net::with_config(config());
    net.service = UDP;
    net.listen(0);
    let ask = |net: &mut Net, number: u32| {
        let mut private_data = [0; 216];
        let header = CmaHeader::new(ip(0), 40_000, ip(1)).unwrap();
        header.emit(&mut private_data).unwrap();
        let req = SidrReqRepr {
            request_id: number,
            pkey: PKey::DEFAULT,
            service_id: ServiceId::from_port(PortSpace::Udp, PORT),
            private_data: PrivateData::new(private_data),
        };
        let mut mad = [0; 256];
        CmMessage::from(req).emit(number.into(), &mut mad).unwrap();
        let now = net.now;
        net.cm(1).handle_mad(now, &path(1), &mad);
    };
    for number in 0..8 {
        ask(&mut net, number);
    }
    let taken = net.cm(1).poll_event().unwrap().id;
    net.cm(1).request_taken(taken);
    net.now += GRACE;
    ask(&mut net, 8);
    net.assert_state(1, taken, State::Closed);
    // Its sender repeats it, and it counts as a new one.
    ask(&mut net, 0);
    let sizes = net.cm(1).table_sizes();
    assert_eq!((sizes.half_open, sizes.ids), (8, 1 + 8 + 1));
    let now = net.now;
    net.cm(1).destroy_id(now, taken).unwrap();
    assert!(net.cm(1).poll_transmit().is_none(), "no message to it");
}
