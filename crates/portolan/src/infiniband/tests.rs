//! Two managers on in-memory transports, with a simulated subnet between them that loses chosen
//! datagrams.

#[path = "../../../sa/tests/scripted/mod.rs"]
mod scripted;

use std::time::{Duration, Instant};

use portolan_provider::cm::EventType;
use portolan_provider::verbs::QpType;
use portolan_sa::{Client, ClientConfig, LinkLayer, PortState};
use portolan_wire::mad::{MadHeaderRepr, Method};
use portolan_wire::sa::SaPacket;
use portolan_wire::{PortSpace, Qpn};

use scripted::{Script, pair};

use super::*;

const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0042);
const PATIENCE: Duration = Duration::from_secs(60);
const SLICE: Duration = Duration::from_millis(2);

fn port(host: u16) -> Port {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[15] = host as u8;
    Port {
        device: format!("ibsim{host}"),
        port_num: 1,
        link_layer: LinkLayer::InfiniBand,
        state: PortState::Active,
        lid: host,
        lmc: 0,
        sm_lid: 1,
        sm_sl: 0,
        gids: vec![Gid(gid)],
        pkeys: vec![PKey::DEFAULT],
    }
}

struct Subnet {
    hosts: [PortManager; 2],
    scripts: [Script; 2],
    /// Number of next datagrams to lose.
    to_lose: usize,
}

impl Subnet {
    fn new() -> Self {
        let (one, first) = pair(port(1));
        let (other, second) = pair(port(2));
        let manager = |transport, seed| {
            PortManager::over(Box::new(transport), Config::default(), [seed; 32]).unwrap()
        };
        Self {
            hosts: [manager(one, 1), manager(other, 2)],
            scripts: [first, second],
            to_lose: 0,
        }
    }

    fn carry(&mut self) {
        for from in [0, 1] {
            while let Some(sent) = self.scripts[from].sent(Duration::ZERO) {
                assert_eq!(usize::from(sent.to.lid), 2 - from);
                if self.to_lose > 0 {
                    self.to_lose -= 1;
                    continue;
                }
                let lid = from as u16 + 1;
                self.scripts[1 - from].say(MadAddress::gsi(lid, 0, 0), &sent.mad);
            }
        }
    }

    fn event(&mut self, host: usize) -> CmEvent {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            self.carry();
            for other in [host, 1 - host] {
                let event = self.hosts[other].next_event(SLICE).unwrap();
                if let Some(event) = event {
                    assert_eq!(other, host, "{event:?}");
                    return event;
                }
            }
        }
        panic!("no event at {host}");
    }

    fn expect(&mut self, host: usize, event: EventType) -> CmEvent {
        let found = self.event(host);
        assert_eq!(found.event, event, "{found:?}");
        found
    }

    /// Creates a listener on the second host and an id on the first that connects to it.
    fn connecting(&mut self, qp_type: QpType) -> (IdNumber, CmEvent) {
        let service = Service {
            port_space: PortSpace::Ib,
            qp_type,
        };
        let listener = self.hosts[1].create_id(UserId(1), service).unwrap();
        self.hosts[1].listen(listener, SERVICE, 4).unwrap();
        let id = self.hosts[0].create_id(UserId(2), service).unwrap();
        self.hosts[0].resolve(id, SERVICE, &path()).unwrap();
        self.expect(0, EventType::AddrResolved);
        self.expect(0, EventType::RouteResolved);
        self.hosts[0].connect(id, &param(0x100)).unwrap();
        (id, self.expect(1, EventType::ConnectRequest))
    }
}

fn path() -> sa::PathRecord {
    sa::PathRecord {
        sgid: port(1).gids[0],
        dgid: port(2).gids[0],
        slid: 1,
        dlid: 2,
        pkey: PKey::DEFAULT,
        mtu: sa::Selected::exactly(4),
        rate: sa::Selected::exactly(3),
        packet_lifetime: sa::Selected::exactly(8),
        ..sa::PathRecord::default()
    }
}

fn param(qpn: u32) -> ConnParam {
    ConnParam {
        qp_num: Qpn::new(qpn),
        ..ConnParam::default()
    }
}

#[test]
fn a_connection_is_made_and_ended_even_if_its_first_messages_are_lost() {
    let mut subnet = Subnet::new();
    subnet.to_lose = 1;
    let (id, request) = subnet.connecting(QpType::Rc);
    subnet.to_lose = 1;
    subnet.hosts[1]
        .accept(request.id, UserId(3), &param(0x200))
        .unwrap();
    subnet.expect(0, EventType::ConnectResponse);
    subnet.hosts[0].establish(id).unwrap();
    subnet.expect(1, EventType::Established);
    subnet.hosts[0].disconnect(id).unwrap();
    subnet.expect(1, EventType::Disconnected);
}

#[test]
fn a_message_leaves_from_the_lid_of_its_path_and_is_answered_from_the_lid_it_arrived_at() {
    let (transport, script) = pair(Port {
        lid: 4,
        lmc: 2,
        ..port(1)
    });
    let mut manager = PortManager::over(Box::new(transport), Config::default(), [1; 32]).unwrap();
    let service = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Rc,
    };
    let id = manager.create_id(UserId(1), service).unwrap();
    let by_the_third = sa::PathRecord { slid: 6, ..path() };
    manager.resolve(id, SERVICE, &by_the_third).unwrap();
    for _ in 0..2 {
        assert!(manager.next_event(PATIENCE).unwrap().is_some());
    }
    manager.connect(id, &param(0x100)).unwrap();
    let request = script.sent(PATIENCE).unwrap();
    assert_eq!((request.to.lid, request.to.path_bits), (2, 2));
    // The request returns to the port itself, at its last LID, where there is no listener.
    let from = MadAddress {
        path_bits: 3,
        ..MadAddress::gsi(2, 0, 0)
    };
    script.say(from, &request.mad);
    let answer = loop {
        manager.next_event(SLICE).unwrap();
        // A REJ, possibly after a retransmission of the request.
        let sent = script.sent(Duration::ZERO);
        if let Some(sent) = sent.filter(|sent| sent.mad[16..18] == [0, 0x12]) {
            break sent;
        }
    };
    assert_eq!((answer.to.lid, answer.to.path_bits), (2, 3));
}

#[test]
fn a_rejection_and_the_answer_of_a_datagram_service_arrive() {
    let mut subnet = Subnet::new();
    let (_, request) = subnet.connecting(QpType::Rc);
    subnet.hosts[1].reject(request.id, b"no").unwrap();
    subnet.expect(0, EventType::Rejected);
    let mut subnet = Subnet::new();
    let (_, request) = subnet.connecting(QpType::Ud);
    subnet.hosts[1]
        .accept(request.id, UserId(3), &param(0x200))
        .unwrap();
    subnet.expect(0, EventType::Established);
}

#[test]
fn waiting_for_an_event_ends_at_the_time_limit() {
    let mut subnet = Subnet::new();
    let started = Instant::now();
    let wait = Duration::from_millis(120);
    assert_eq!(subnet.hosts[0].next_event(wait).unwrap(), None);
    assert!(started.elapsed() >= wait);
}

#[test]
fn a_port_without_a_lid_cannot_be_managed_and_a_port_that_goes_down_is_reported() {
    let (transport, script) = pair(port(1));
    script.change_port(|port| port.lid = 0);
    let error = PortManager::over(Box::new(transport), Config::default(), [1; 32]);
    assert!(matches!(error.unwrap_err().cause, Cause::NoDevice { .. }));
    let mut subnet = Subnet::new();
    subnet.scripts[0].remove_port();
    let error = subnet.hosts[0].next_event(SLICE).unwrap_err();
    assert!(matches!(error.cause, Cause::DeviceRemoved), "{error}");
}

/// A client whose administrator answers everything with `status`, in its own thread.
fn administrator(status: u16) -> (Client, std::thread::JoinHandle<Vec<Method>>) {
    let (transport, script) = pair(port(2));
    let transport = portolan_threads::lock::Mutex::new(Some(transport));
    let client = Client::new(ClientConfig::default(), move || {
        let transport = transport.lock().take();
        Ok(Box::new(transport.expect("opened once")))
    });
    let serving = std::thread::spawn(move || {
        let mut asked = Vec::new();
        // The last request withdraws the service, unless the registration was refused.
        while asked.last() != Some(&Method::DELETE) && (status == 0 || asked.is_empty()) {
            let sent = script.sent(PATIENCE).expect("a question");
            let packet = SaPacket::new_checked(&sent.mad[..]).unwrap();
            asked.push(packet.mad().method);
            let method = match packet.mad().method {
                Method::SET => Method::GET_RESP,
                Method(other) => Method(other | 0x80),
            };
            let header = MadHeaderRepr {
                method,
                status,
                ..*packet.mad()
            };
            let answer = SaPacket::emit(&header, packet.sa(), packet.data()).unwrap();
            script.say(sent.to, &answer);
        }
        asked
    });
    (client, serving)
}

#[test]
fn a_registered_listener_is_found_and_withdrawn_when_its_registration_is_dropped() {
    let (client, serving) = administrator(0);
    let mut subnet = Subnet::new();
    let service = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Rc,
    };
    let listener = subnet.hosts[1].create_id(UserId(1), service).unwrap();
    let offer = ServiceOffer::new(SERVICE, "harbour").lease(Duration::from_secs(3600));
    let registration = subnet.hosts[1].listen_registered(listener, &offer, 4, &client);
    let registration = registration.unwrap();
    let record = registration.record();
    assert_eq!(
        (record.gid, record.name()),
        (port(2).gids[0], Some("harbour"))
    );
    let id = subnet.hosts[0].create_id(UserId(2), service).unwrap();
    subnet.hosts[0]
        .resolve(id, record.service_id, &path())
        .unwrap();
    subnet.expect(0, EventType::AddrResolved);
    subnet.expect(0, EventType::RouteResolved);
    subnet.hosts[0].connect(id, &param(0x100)).unwrap();
    subnet.expect(1, EventType::ConnectRequest);
    drop(registration);
    assert_eq!(serving.join().unwrap(), [Method::SET, Method::DELETE]);
}

#[test]
fn an_offer_that_does_not_fit_a_record_or_is_refused_is_an_error() {
    let mut subnet = Subnet::new();
    let service = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Rc,
    };
    // Status "request denied".
    let (client, serving) = administrator(0x0200);
    let harbour = ServiceOffer::new(SERVICE, "harbour");
    for wrong in [
        ServiceOffer::new(SERVICE, ""),
        ServiceOffer::new(SERVICE, "x".repeat(65)),
        harbour.clone().lease(Duration::from_millis(999)),
    ] {
        let id = subnet.hosts[1].create_id(UserId(1), service).unwrap();
        let error = subnet.hosts[1].listen_registered(id, &wrong, 4, &client);
        let error = error.expect_err("no query was made");
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
        subnet.hosts[1].destroy(id).unwrap();
    }
    let id = subnet.hosts[1].create_id(UserId(1), service).unwrap();
    let error = subnet.hosts[1].listen_registered(id, &harbour, 4, &client);
    let error = error.expect_err("refused");
    assert!(matches!(error.cause, Cause::Os { .. }), "{error}");
    assert_eq!(serving.join().unwrap(), [Method::SET]);
}

#[test]
fn a_request_taken_without_waiting_survives_its_listener() {
    let mut subnet = Subnet::new();
    let service = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Rc,
    };
    let listener = subnet.hosts[1].create_id(UserId(1), service).unwrap();
    subnet.hosts[1].listen(listener, SERVICE, 4).unwrap();
    let id = subnet.hosts[0].create_id(UserId(2), service).unwrap();
    subnet.hosts[0].resolve(id, SERVICE, &path()).unwrap();
    subnet.expect(0, EventType::AddrResolved);
    subnet.expect(0, EventType::RouteResolved);
    subnet.hosts[0].connect(id, &param(0x100)).unwrap();
    subnet.carry();
    let request = subnet.hosts[1].next_event(Duration::ZERO).unwrap();
    let request = request.expect("the request has arrived");
    assert_eq!(request.event, EventType::ConnectRequest);
    subnet.hosts[1].destroy(listener).unwrap();
    subnet.hosts[1]
        .accept(request.id, UserId(3), &param(0x200))
        .unwrap();
}
