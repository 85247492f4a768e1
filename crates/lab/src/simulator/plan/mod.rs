//! The plan of a run: what programs do and how bad the network is. It is drawn from the seed before
//! the run begins.

mod conversation;
mod inquiry;
mod member;
mod workload;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use portolan_cm::Config;
use portolan_provider::verbs::Mtu;
use portolan_roce::engine::FlowConfig;

pub(super) use conversation::{
    AddressAnswer, Answer, ConversationPlan, Ending, Expect, Side, Use, draw_psn,
};
pub(super) use inquiry::{
    InquiryPlan, Outcome, Reply, STATUS_REJECT, STATUS_UNSUPPORTED, ServicePlan,
};
pub(super) use member::{Leaving, MemberPlan};
pub(super) use workload::{Flaw, Kind, OpPlan, WorkloadPlan};

use super::network::Faults;
use super::rng::Rng;

/// How hard a run is; this decides what the oracle demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The network loses nothing, so nothing may be sent twice without need.
    Calm,
    /// Packets are lost, copied, reordered and corrupted, but so few that every retry count
    /// suffices: everything legal must succeed.
    Lossy,
    /// Heavy loss, partitions, crashes. Operations may fail, but must report it.
    Chaos,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) class: Class,
    pub(super) hosts: Vec<HostPlan>,
    pub(super) listeners: Vec<ListenerPlan>,
    pub(super) conversations: Vec<ConversationPlan>,
    pub(super) services: Vec<ServicePlan>,
    pub(super) inquiries: Vec<InquiryPlan>,
    pub(super) members: Vec<MemberPlan>,
    pub(super) faults: Faults,
    pub(super) partitions: Vec<Partition>,
    pub(super) crashes: Vec<Crash>,
    pub(super) stalls: Vec<Stall>,
    pub(super) cm: Config,
    pub(super) flow: FlowConfig,
}

/// A machine.
#[derive(Clone, Debug)]
pub(super) struct HostPlan {
    pub(super) addr: IpAddr,
    /// Hosts with the same number share their address and its UDP port.
    pub(super) group: usize,
    pub(super) mtu: Mtu,
    pub(super) ack_delay_exp: u8,
    /// Packets that a queue pair may send before others get their turn.
    pub(super) burst_packets_max: u32,
    /// How often an id moves to another channel after an event, per thousand.
    pub(super) migrates_permille: u32,
    /// How long the program may take to handle its events, in microseconds.
    pub(super) reaction_us_max: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerPlan {
    pub(super) host: usize,
    pub(super) port: u16,
    /// Bound to the host's address instead of the wildcard.
    pub(super) is_specific: bool,
    pub(super) backlog: i32,
    pub(super) close_at: Option<Duration>,
}

/// A partition between two hosts for a time, in one direction or both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) both: bool,
    pub(super) at: Duration,
    pub(super) heal_at: Option<Duration>,
}

/// A host loses all its state and restarts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crash {
    pub(super) host: usize,
    pub(super) at: Duration,
    pub(super) restart_at: Duration,
    /// Whether it allocates the same queue pair numbers as before, so that its peers detect stale
    /// connections.
    pub(super) reuses_qpns: bool,
}

/// A host stalls for a time, including its timers. Packets wait in its socket's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    pub(super) host: usize,
    pub(super) at: Duration,
    pub(super) lasts: Duration,
}

/// Ports with listeners.
pub(super) const PORTS: [u16; 3] = [7471, 7472, 18515];

/// A port without a listener.
pub(super) const DEAD_PORT: u16 = 9;

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let class = match rng.below(100) {
            0..10 => Class::Calm,
            10..55 => Class::Lossy,
            _ => Class::Chaos,
        };
        let hosts = draw_hosts(rng, class);
        let faults = draw_faults(rng, class);
        let mut cm = draw_cm(rng, class);
        let listeners = draw_listeners(rng, class, &hosts);
        let count = rng.between(1, if class == Class::Chaos { 14 } else { 9 });
        let mut conversations = Vec::new();
        for _ in 0..count {
            conversations.push(ConversationPlan::draw(
                rng,
                class,
                hosts.len(),
                &listeners,
                &cm,
            ));
        }
        let (partitions, mut crashes) = match class {
            Class::Chaos => (
                draw_partitions(rng, hosts.len()),
                draw_crashes(rng, hosts.len()),
            ),
            Class::Lossy => (Vec::new(), draw_deaths(rng, &hosts)),
            Class::Calm => Default::default(),
        };
        draw_companions(rng, &hosts, &mut crashes);
        let stalls = draw_stalls(rng, class, hosts.len());
        for crash in &crashes {
            conversations.push(ConversationPlan::draw_after(
                rng,
                crash,
                hosts.len(),
                &listeners,
                &cm,
            ));
        }
        let flow = draw_flow(rng);
        let services = inquiry::draw_services(rng, class, &hosts);
        let mut inquiries = inquiry::draw_inquiries(rng, class, hosts.len(), &services, &cm);
        let members = match hosts[0].addr {
            IpAddr::V4(_) => member::draw_members(rng, class, hosts.len()),
            IpAddr::V6(_) => Vec::new(),
        };
        if rng.percent(20) {
            cm.max_memberships = 2;
        }
        // Anything may come of a conversation or question with a process that dies. All others must
        // succeed.
        let dies = |host: &usize| crashes.iter().any(|crash| crash.host == *host);
        for conversation in &mut conversations {
            if conversation.hosts.iter().any(dies) {
                conversation.expect = Expect::Anything;
            }
        }
        for inquiry in &mut inquiries {
            if inquiry.hosts.iter().any(dies) {
                inquiry.outcome = Outcome::Anything;
            }
        }
        Self {
            class,
            hosts,
            listeners,
            conversations,
            services,
            inquiries,
            members,
            faults,
            partitions,
            crashes,
            stalls,
            cm,
            flow,
        }
    }
}

fn draw_hosts(rng: &mut Rng, class: Class) -> Vec<HostPlan> {
    let is_v6 = rng.percent(30);
    let mtus = [
        Mtu::Mtu256,
        Mtu::Mtu512,
        Mtu::Mtu1024,
        Mtu::Mtu2048,
        Mtu::Mtu4096,
    ];
    let common_mtu = rng.pick(&mtus);
    let ack_delay_exp = rng.between(12, 16) as u8;
    let count = rng.between(2, 5);
    // Some of them share an address with the previous one.
    let shares = rng.percent(50);
    let mut groups = 0;
    let draw = |index: u64| HostPlan {
        group: {
            groups += u8::from(index > 0 && !(shares && rng.percent(60)));
            groups.into()
        },
        addr: match is_v6 {
            false => Ipv4Addr::new(10, 0, 0, groups + 1).into(),
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(groups) + 1).into(),
        },
        mtu: match class == Class::Chaos && rng.percent(10) {
            true => rng.pick(&mtus),
            false => common_mtu,
        },
        ack_delay_exp,
        burst_packets_max: if rng.percent(30) {
            rng.between(1, 4) as u32
        } else {
            u32::MAX
        },
        migrates_permille: rng.pick(&[0, 50, 300]),
        reaction_us_max: match class {
            Class::Chaos if rng.percent(10) => 3_000_000,
            _ => rng.pick(&[0, 100, 20_000]),
        },
    };
    (0..count).map(draw).collect()
}

pub(super) fn draw_faults(rng: &mut Rng, class: Class) -> Faults {
    let latency_us = rng.pick(&[(1, 1), (5, 50), (20, 500), (1000, 3000), (5000, 20_000)]);
    let calm = Faults {
        latency_us,
        late_us_max: 1,
        ..Faults::default()
    };
    match class {
        Class::Calm => calm,
        Class::Lossy => Faults {
            lost_permille: rng.pick(&[0, 5, 20, 25]),
            duplicated_permille: rng.pick(&[0, 5, 50]),
            reordered_permille: rng.pick(&[0, 2, 10]),
            late_us_max: rng.pick(&[50, 2000, 50_000]),
            corrupted_permille: rng.pick(&[0, 1, 5]),
            ..calm
        },
        Class::Chaos => Faults {
            lost_permille: rng.pick(&[0, 10, 50, 150, 300]),
            duplicated_permille: rng.pick(&[0, 50, 300]),
            reordered_permille: rng.pick(&[0, 10, 200]),
            late_us_max: rng.pick(&[100, 10_000, 500_000, 1_000_000]),
            corrupted_permille: rng.pick(&[0, 10, 50]),
            burst_permille: rng.pick(&[0, 0, 10]),
            burst_packets_max: 30,
            ..calm
        },
    }
}

/// Linux's settings in half of the runs, other settings in the rest.
fn draw_cm(rng: &mut Rng, class: Class) -> Config {
    let mut config = Config {
        max_ids: 64,
        ..Config::default()
    };
    if rng.percent(50) {
        return config;
    }
    config.retry_backoff_shift = rng.between(0, 5) as u8;
    config.response_timeout_exp = rng.between(16, 20) as u8;
    config.packet_lifetime_exp = rng.between(15, 18) as u8;
    // Long enough for a slow program: at least four times the response timeout.
    config.mra_timeout_exp = config.response_timeout_exp + rng.between(2, 4) as u8;
    if class == Class::Chaos {
        config.max_cm_retries = rng.between(1, 15) as u8;
        config.mra_timeout_exp = rng.between(10, 24) as u8;
        config.longest_grant_exp = rng.between(18, 24) as u8;
        config.max_timewait_remembered = rng.pick(&[1024, 1024, 4]) as usize;
    }
    config
}

fn draw_listeners(rng: &mut Rng, class: Class, hosts: &[HostPlan]) -> Vec<ListenerPlan> {
    let mut listeners: Vec<ListenerPlan> = Vec::new();
    for host in 0..hosts.len() {
        for port in PORTS {
            let is_taken = listeners
                .iter()
                .any(|other| other.port == port && hosts[other.host].group == hosts[host].group);
            if !is_taken && rng.percent(60) {
                let closes = class == Class::Chaos && rng.percent(15);
                listeners.push(ListenerPlan {
                    host,
                    port,
                    is_specific: rng.percent(40),
                    backlog: if rng.percent(20) { 1 } else { 0 },
                    close_at: closes.then(|| rng.millis(1, 8000)),
                });
            }
        }
    }
    if listeners.is_empty() {
        let (port, is_specific) = (PORTS[0], false);
        listeners.push(ListenerPlan {
            host: 0,
            port,
            is_specific,
            backlog: 0,
            close_at: None,
        });
    }
    listeners
}

fn draw_partitions(rng: &mut Rng, hosts: usize) -> Vec<Partition> {
    let count = rng.pick(&[0, 0, 1, 2]);
    let mut draw = || {
        let at = rng.millis(0, 6000);
        let lasts = rng.pick(&[20, 500, 5000, 60_000]);
        Partition {
            from: rng.below(hosts as u64) as usize,
            to: rng.below(hosts as u64) as usize,
            both: rng.percent(60),
            at,
            heal_at: rng.percent(80).then(|| at + rng.millis(1, lasts)),
        }
    };
    (0..count).map(|_| draw()).collect()
}

fn draw_crashes(rng: &mut Rng, hosts: usize) -> Vec<Crash> {
    let count = rng.pick(&[0, 0, 1, 1, 2]);
    let mut draw = || {
        let at = rng.millis(0, 6000);
        let lasts = rng.pick(&[1, 100, 3000]);
        Crash {
            host: rng.below(hosts as u64) as usize,
            at,
            restart_at: at + rng.millis(0, lasts),
            reuses_qpns: rng.percent(60),
        }
    };
    (0..count).map(|_| draw()).collect()
}

/// Deaths of processes that share their address with others, which must not be disturbed.
fn draw_deaths(rng: &mut Rng, hosts: &[HostPlan]) -> Vec<Crash> {
    let shares = |host: usize| {
        let others = hosts
            .iter()
            .filter(|other| other.group == hosts[host].group);
        others.count() > 1
    };
    let sharing: Vec<usize> = (0..hosts.len()).filter(|host| shares(*host)).collect();
    if sharing.is_empty() {
        return Vec::new();
    }
    let mut draw = || {
        let at = rng.millis(0, 2000);
        Crash {
            host: rng.pick(&sharing),
            at,
            restart_at: at + rng.millis(0, 500),
            reuses_qpns: false,
        }
    };
    [draw(), draw()].into()
}

/// When a process dies, others at its address often die at the same time, or while its death is
/// being announced.
fn draw_companions(rng: &mut Rng, hosts: &[HostPlan], crashes: &mut Vec<Crash>) {
    let Some(first) = crashes.first().copied().filter(|_| rng.percent(60)) else {
        return;
    };
    let after_us_max = rng.pick(&[0, 0, 100, 20_000]);
    for (host, plan) in hosts.iter().enumerate() {
        let is_beside = host != first.host && plan.group == hosts[first.host].group;
        if is_beside && rng.percent(70) {
            let at = first.at + rng.micros(0, after_us_max);
            crashes.push(Crash {
                host,
                at,
                restart_at: at + rng.millis(0, 500),
                reuses_qpns: false,
            });
        }
    }
}

fn draw_stalls(rng: &mut Rng, class: Class, hosts: usize) -> Vec<Stall> {
    let (count, longest_ms) = match class {
        Class::Calm => (0, 0),
        Class::Lossy => (rng.pick(&[0, 0, 3]), 200),
        Class::Chaos => (rng.pick(&[0, 0, 2, 6]), 4000),
    };
    let mut draw = || Stall {
        host: rng.below(hosts as u64) as usize,
        at: rng.millis(0, 3000),
        lasts: rng.millis(1, longest_ms),
    };
    (0..count).map(|_| draw()).collect()
}

pub(super) fn draw_flow(rng: &mut Rng) -> FlowConfig {
    let mut flow = FlowConfig::default();
    if rng.percent(50) {
        flow.window_initial_bytes = rng.pick(&[1, 4 << 10, 64 << 10]);
        flow.window_min_bytes = rng.pick(&[1, 8 << 10]);
        flow.window_max_bytes = rng.pick(&[16 << 10, 1 << 20]);
        flow.read_request_bytes_max = rng.pick(&[256, 4 << 10, 256 << 10]);
        flow.ack_interval_bytes = rng.pick(&[1, 2 << 10, 8 << 10, 128 << 10]);
    }
    flow
}
