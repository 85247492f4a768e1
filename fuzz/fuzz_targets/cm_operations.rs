//! Two connection managers, commands in any order, and a network that loses, repeats and delays packets:
//! nothing panics, nothing grows beyond its bounds, and destroyed ids are forgotten.
#![no_main]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_cm::{BoundDevice, Cm, Config, MadPath, Query, ResolvedAddress, Transmit};
use portolan_provider::cm::{ConnParam, Ece, IdNumber, Service, UserId};
use portolan_provider::verbs::{Mtu, QpType};
use portolan_wire::cm::RejectReason;
use portolan_wire::{Gid, PortSpace, Qpn};

const MAX_IDS: u32 = 16;
/// Longer than all retransmissions and timewaits of the engines.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Arbitrary, Debug)]
enum Operation {
    Create {
        host: bool,
        datagrams: bool,
    },
    Bind {
        host: bool,
        id: u8,
        port: u8,
    },
    Listen {
        host: bool,
        id: u8,
    },
    ResolveAddr {
        host: bool,
        id: u8,
        port: u8,
    },
    ResolveRoute {
        host: bool,
        id: u8,
    },
    Connect {
        host: bool,
        id: u8,
        private_data: u8,
    },
    Accept {
        host: bool,
        id: u8,
        private_data: u8,
    },
    Establish {
        host: bool,
        id: u8,
    },
    Reject {
        host: bool,
        id: u8,
    },
    Disconnect {
        host: bool,
        id: u8,
    },
    Destroy {
        host: bool,
        id: u8,
    },
    Deliver {
        at: u8,
        copies: u8,
    },
    Lose {
        at: u8,
    },
    Wait {
        ms: u16,
    },
}

struct Host {
    cm: Cm,
    ids: Vec<IdNumber>,
}

struct Net {
    now: Duration,
    hosts: [Host; 2],
    flying: Vec<(usize, Transmit)>,
}

fuzz_target!(|operations: Vec<Operation>| {
    let config = Config {
        max_ids: MAX_IDS,
        max_backlog: 4,
        max_events_queued: 16,
        max_transmits_queued: 16,
        max_timewait_remembered: 4,
        ..Config::default()
    };
    let host = |seed| Host {
        cm: Cm::new(config.clone(), [seed; 32]),
        ids: Vec::new(),
    };
    let mut net = Net {
        now: Duration::from_secs(1),
        hosts: [host(1), host(2)],
        flying: Vec::new(),
    };
    for operation in operations.iter().take(200) {
        net.apply(operation);
        net.drain();
    }
    net.destroy_all();
});

impl Net {
    fn apply(&mut self, operation: &Operation) {
        use Operation::*;
        let now = self.now;
        match *operation {
            Create { host, datagrams } => {
                let host = &mut self.hosts[usize::from(host)];
                let (port_space, qp_type) = match datagrams {
                    true => (PortSpace::Udp, QpType::Ud),
                    false => (PortSpace::Tcp, QpType::Rc),
                };
                let uid = UserId(host.ids.len() as u64);
                let service = Service {
                    port_space,
                    qp_type,
                };
                host.ids.extend(host.cm.create_id(uid, service));
            }
            Bind { host, id, port } => self.with(host, id, |cm, id| {
                let local = SocketAddr::new(ip(usize::from(host)), 7000 + u16::from(port % 4));
                let _ = cm.bind(now, id, local, Some(device(usize::from(host))));
            }),
            Listen { host, id } => self.with(host, id, |cm, id| {
                let _ = cm.listen(now, id, 4);
            }),
            ResolveAddr { host, id, port } => self.with(host, id, |cm, id| {
                let peer = usize::from(!host);
                let destination = SocketAddr::new(ip(peer), 7000 + u16::from(port % 4));
                let _ = cm.resolve_addr(now, id, None, destination, Duration::from_secs(1));
            }),
            ResolveRoute { host, id } => self.with(host, id, |cm, id| {
                let _ = cm.resolve_route(now, id, Duration::from_secs(1));
            }),
            Connect {
                host,
                id,
                private_data,
            } => self.with(host, id, |cm, id| {
                let _ = cm.connect(now, id, &param(id, private_data), Ece::default());
            }),
            Accept {
                host,
                id,
                private_data,
            } => self.with(host, id, |cm, id| {
                let param = param(id, private_data);
                let _ = cm.accept(now, id, UserId(9), &param, Ece::default());
            }),
            Establish { host, id } => self.with(host, id, |cm, id| {
                let _ = cm.establish(now, id);
            }),
            Reject { host, id } => self.with(host, id, |cm, id| {
                let _ = cm.reject(now, id, RejectReason::CONSUMER_DEFINED, b"no");
            }),
            Disconnect { host, id } => self.with(host, id, |cm, id| {
                let _ = cm.disconnect(now, id);
            }),
            Destroy { host, id } => {
                self.with(host, id, |cm, id| {
                    let _ = cm.destroy_id(now, id);
                });
                let ids = &mut self.hosts[usize::from(host)].ids;
                if !ids.is_empty() {
                    ids.swap_remove(usize::from(id) % ids.len());
                }
            }
            Deliver { at, copies } => {
                if let Some((from, transmit)) = self.take(at) {
                    for _ in 0..=copies % 3 {
                        self.deliver(from, &transmit);
                    }
                }
            }
            Lose { at } => drop(self.take(at)),
            Wait { ms } => self.wait(Duration::from_millis(ms.into())),
        }
    }

    fn with(&mut self, host: bool, id: u8, command: impl FnOnce(&mut Cm, IdNumber)) {
        let host = &mut self.hosts[usize::from(host)];
        if !host.ids.is_empty() {
            let id = host.ids[usize::from(id) % host.ids.len()];
            command(&mut host.cm, id);
        }
    }

    fn take(&mut self, at: u8) -> Option<(usize, Transmit)> {
        let at = usize::from(at) % self.flying.len().max(1);
        (at < self.flying.len()).then(|| self.flying.remove(at))
    }

    fn deliver(&mut self, from: usize, transmit: &Transmit) {
        let to = 1 - from;
        let path = MadPath {
            local: ip(to),
            remote: ip(from),
            scope_id: 0,
            device: device(to),
            lids: None,
        };
        self.hosts[to].cm.handle_mad(self.now, &path, &transmit.mad);
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        for host in &mut self.hosts {
            host.cm.handle_timeout(self.now);
        }
    }

    fn drain(&mut self) {
        for index in 0..2 {
            let host = &mut self.hosts[index];
            while let Some(query) = host.cm.poll_query() {
                let Query::Address {
                    id,
                    query,
                    destination,
                    ..
                } = query;
                let answer = ResolvedAddress {
                    source: SocketAddr::new(ip(index), 40_000 + id.0 as u16),
                    destination,
                    device: device(index),
                    dgid: Gid::from(destination.ip()),
                    hop_limit: 64,
                    neighbour: None,
                };
                let _ = host.cm.address_resolved(self.now, id, query, Ok(answer));
            }
            while let Some(event) = host.cm.poll_event() {
                if !host.ids.contains(&event.id) {
                    host.ids.push(event.id);
                }
            }
            while let Some(transmit) = host.cm.poll_transmit() {
                self.flying.push((index, transmit));
            }
            assert!(host.cm.table_sizes().ids <= MAX_IDS as usize);
        }
        let surplus = self.flying.len().saturating_sub(256);
        self.flying.drain(..surplus);
    }

    /// Destroys every id. Once all timers have expired, the engines must hold nothing.
    fn destroy_all(&mut self) {
        for index in 0..2 {
            let host = &mut self.hosts[index];
            for id in std::mem::take(&mut host.ids) {
                let _ = host.cm.destroy_id(self.now, id);
            }
        }
        for _ in 0..4 {
            for host in &mut self.hosts {
                while host.cm.poll_transmit().is_some() {}
                while let Some(event) = host.cm.poll_event() {
                    let _ = host.cm.destroy_id(self.now, event.id);
                }
            }
            self.wait(LONG);
        }
        for host in &mut self.hosts {
            while host.cm.poll_transmit().is_some() {}
            let sizes = host.cm.table_sizes();
            assert_eq!((sizes.ids, sizes.comm_ids), (0, 0), "{sizes:?}");
            assert_eq!(host.cm.poll_timeout(), None, "{sizes:?}");
        }
    }
}

fn param(id: IdNumber, private_data: u8) -> ConnParam {
    ConnParam {
        private_data: vec![private_data; private_data.into()].into(),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: Qpn::new(id.0 + 0x100),
        ..ConnParam::default()
    }
}

fn ip(host: usize) -> IpAddr {
    IpAddr::from([192, 168, 7, host as u8 + 1])
}

fn device(host: usize) -> BoundDevice {
    BoundDevice {
        device_index: 0,
        port_num: 1,
        sgid_index: 1,
        sgid: Gid::from(ip(host)),
        node_guid: host as u64 + 1,
        mtu: Mtu::Mtu1024,
        ack_delay_exp: 15,
    }
}
