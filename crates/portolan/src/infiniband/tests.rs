//! Two managers, each at the end of a transport in memory, with a subnet between them that loses what it is
//! told to.

use std::time::{Duration, Instant};

use portolan_provider::cm::EventType;
use portolan_provider::verbs::QpType;
use portolan_sa::scripted::{Script, pair};
use portolan_sa::{LinkLayer, PortState};
use portolan_wire::{PortSpace, Qpn};

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
    /// How many of the datagrams to come are lost.
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

    /// A listener at the second host; an id of the first that is asking it.
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
fn a_connection_is_made_and_ended_though_its_first_messages_are_lost() {
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
fn an_event_that_does_not_come_is_waited_for_no_longer_than_said() {
    let mut subnet = Subnet::new();
    let started = Instant::now();
    let wait = Duration::from_millis(120);
    assert_eq!(subnet.hosts[0].next_event(wait).unwrap(), None);
    assert!(started.elapsed() >= wait);
}

#[test]
fn a_port_without_a_lid_cannot_be_managed_and_one_that_goes_is_told() {
    let (transport, script) = pair(port(1));
    script.change_port(|port| port.lid = 0);
    let error = PortManager::over(Box::new(transport), Config::default(), [1; 32]);
    assert!(matches!(error.unwrap_err().cause, Cause::NoDevice { .. }));
    let mut subnet = Subnet::new();
    subnet.scripts[0].remove_port();
    let error = subnet.hosts[0].next_event(SLICE).unwrap_err();
    assert!(matches!(error.cause, Cause::DeviceRemoved), "{error}");
}
