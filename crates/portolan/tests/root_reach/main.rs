//! Reachability of GIDs over Ethernet: two hosts on a link, and the errors of ibv_gid_reachable(3). Needs root.

#[path = "../../../addrinfo/tests/support/mod.rs"]
mod support;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use portolan::provider::error::errno;
use portolan::provider::traits::{Device, Provider};
use portolan::reach::{
    Method, Port, Reached, Reason, Unreachable, gid_reachable, reach, reach_many, start,
};
use portolan::software::{SoftwareConfig, SoftwareProvider};
use portolan::wire::addr::Gid;
use support::Namespace;

/// Longer than discovery takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(20);
const THERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

struct Hosts {
    here: Namespace,
    _there: Namespace,
}

/// Runs a test on this host, alone. This host is 192.0.2.1, 2001:db8::1 and fe80::1. The other is .2 and ::2,
/// and also the router to 198.51.100.0/24. 192.0.2.9 has no host. On a second link they are fe80::11 and fe80::12.
fn here(test: impl FnOnce(&dyn Fn(&str) -> Arc<dyn Device>) + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    static HOSTS: OnceLock<Hosts> = OnceLock::new();
    static PROVIDER: OnceLock<Arc<SoftwareProvider>> = OnceLock::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = HOSTS.get_or_init(hosts);
    hosts.here.run(move || {
        let provider =
            PROVIDER.get_or_init(|| SoftwareProvider::start(SoftwareConfig::default()).unwrap());
        test(&|name| {
            let mut devices = provider.devices().unwrap().into_iter();
            devices.find(|device| device.name() == name).unwrap()
        });
    });
}

fn hosts() -> Hosts {
    let (here, there) = (Namespace::new(), Namespace::new());
    // Without waiting for duplicate address detection, and with failure within 300 ms instead of 3 s.
    for namespace in [&here, &there] {
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0");
        namespace.sysctl("net/ipv6/conf/all/accept_dad", "0");
    }
    here.join(&there);
    let there_id = there.thread_id();
    here.run(move || {
        ip(&format!(
            "link add eth1 type veth peer name eth1 netns {there_id}"
        ));
    });
    // Without a second link-local address, which routing might choose as source.
    here.sysctl("net/ipv6/conf/eth1/addr_gen_mode", "1");
    here.ip("link set eth1 up
        addr add fe80::11/64 dev eth1 nodad");
    there.ip("link set eth1 address 02:00:00:00:00:12 up
        addr add fe80::12/64 dev eth1 nodad");
    here.sysctl("net/ipv6/neigh/eth1/retrans_time_ms", "100");
    here.sysctl("net/ipv4/neigh/eth0/retrans_time_ms", "100");
    here.sysctl("net/ipv6/neigh/eth0/retrans_time_ms", "100");
    // A stale neighbour is probed after a second instead of 5 s.
    here.sysctl("net/ipv4/neigh/eth0/delay_first_probe_time", "1");
    here.sysctl("net/ipv6/neigh/eth0/delay_first_probe_time", "1");
    there.ip("link set eth0 address 02:00:00:00:00:02
        addr add 192.0.2.2/24 dev eth0
        addr add 2001:db8::2/64 dev eth0 nodad
        addr add fe80::2/64 dev eth0 nodad");
    here.ip("link set eth0 address 02:00:00:00:00:01
        addr add 192.0.2.1/24 dev eth0
        addr add 2001:db8::1/64 dev eth0 nodad
        addr add fe80::1/64 dev eth0 nodad
        route add 198.51.100.0/24 via 192.0.2.2
        route add unreachable 198.51.101.0/24
        route add prohibit 198.51.102.0/24
        link add dark type veth peer name darker
        addr add 203.0.113.1/24 dev dark");
    Hosts {
        here,
        _there: there,
    }
}

fn gid(text: &str) -> Gid {
    Gid::from_ip(text.parse::<IpAddr>().unwrap())
}

fn from(device: &Arc<dyn Device>, to: &str) -> Result<Reached, Unreachable> {
    gid_reachable(&**device, 0, gid(to), PATIENCE)
}

#[track_caller]
fn errno_of(outcome: Result<Reached, Unreachable>) -> i32 {
    outcome.unwrap_err().errno()
}

#[test]
fn a_neighbour_that_answers_is_reachable_and_the_method_is_reported() {
    here(|device| {
        let device = device("sw_eth0");
        for (to, source) in [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")] {
            let found = from(&device, to).unwrap();
            assert_eq!((found.method, found.source), (Method::Route, gid(source)));
            assert_eq!(found.next_hop, Some(to.parse().unwrap()));
            assert_eq!(found.link_address, Some(THERE_MAC));
        }
        // The mapped form of an IPv4 address is the same GID.
        assert_eq!(
            from(&device, "::ffff:192.0.2.2"),
            from(&device, "192.0.2.2")
        );
    });
}

#[test]
fn a_link_local_gid_is_looked_up_on_the_ports_own_link() {
    here(|device| {
        let reached = from(&device("sw_eth0"), "fe80::2").unwrap();
        assert_eq!(
            (reached.source, reached.link_address),
            (gid("fe80::1"), Some(THERE_MAC))
        );
        assert_eq!(errno_of(from(&device("sw_eth0"), "fe80::9")), errno::ENXIO);
        assert_eq!(errno_of(from(&device("sw_lo"), "fe80::2")), errno::ENXIO);
    });
}

#[test]
fn a_link_local_gid_is_looked_up_on_each_interface_of_the_port() {
    here(|_| {
        let addresses = ["fe80::1", "fe80::11"].map(|text| text.parse().unwrap());
        let interfaces = ["eth0", "eth1"].map(support::interface_index);
        let port = Port::ethernet("both", 1, addresses.to_vec(), interfaces.to_vec());
        for (to, source, last) in [("fe80::2", "fe80::1", 2), ("fe80::12", "fe80::11", 0x12)] {
            let reached = reach(&port, gid(to), PATIENCE).unwrap();
            let expected = (gid(source), Some([2, 0, 0, 0, 0, last]));
            assert_eq!((reached.source, reached.link_address), expected);
        }
        let own = reach(&port, gid("fe80::11"), PATIENCE).unwrap();
        assert_eq!((own.source, own.next_hop), (gid("fe80::11"), None));
        assert_eq!(
            errno_of(reach(&port, gid("fe80::9"), PATIENCE)),
            errno::ENXIO
        );
    });
}

#[test]
fn for_a_gid_behind_a_router_the_router_must_answer() {
    here(|device| {
        let reached = from(&device("sw_eth0"), "198.51.100.7").unwrap();
        assert_eq!(reached.next_hop, Some("192.0.2.2".parse().unwrap()));
    });
}

#[test]
fn gids_of_this_host_need_no_answer() {
    here(|device| {
        for (name, to) in [
            ("sw_eth0", "192.0.2.1"),
            ("sw_lo", "127.0.0.1"),
            ("sw_lo", "::1"),
        ] {
            let reached = from(&device(name), to).unwrap();
            assert_eq!((reached.source, reached.next_hop), (gid(to), None));
        }
    });
}

#[test]
fn without_a_route_or_an_answer_on_the_link_it_is_enxio() {
    here(|device| {
        let device = device("sw_eth0");
        for to in [
            "192.0.2.9",
            "2001:db8::9",
            "198.18.0.1",
            "2001:db8:9::1",
            "198.51.101.1",
            "198.51.102.1",
        ] {
            let unreachable = from(&device, to).unwrap_err();
            assert_eq!(unreachable.errno(), errno::ENXIO, "{unreachable}");
            assert!(unreachable.is_no_path());
            let text = unreachable.to_string();
            assert!(text.contains("from sw_eth0 port 1: no path: "), "{text}");
        }
    });
}

/// Runs ip(8) in the namespace of the calling thread.
fn ip(commands: &str) {
    for command in commands.lines() {
        let words = command.split_whitespace();
        let status = std::process::Command::new("ip").args(words).status();
        assert!(status.unwrap().success(), "ip {command}");
    }
}

#[test]
fn a_stale_neighbour_must_answer_again() {
    here(|device| {
        let device = device("sw_eth0");
        ip(
            "neigh replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev eth0 nud stale
            neigh replace 2001:db8::9 lladdr 02:00:00:00:00:09 dev eth0 nud stale
            neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev eth0 nud stale
            neigh replace 2001:db8::2 lladdr 02:00:00:00:00:02 dev eth0 nud stale",
        );
        for to in ["192.0.2.2", "2001:db8::2"] {
            assert_eq!(from(&device, to).unwrap().link_address, Some(THERE_MAC));
        }
        for to in ["192.0.2.9", "2001:db8::9"] {
            assert_eq!(errno_of(from(&device, to)), errno::ENXIO, "{to}");
        }
    });
}

#[test]
fn a_permanent_neighbour_needs_no_answer() {
    here(|device| {
        ip("neigh replace 192.0.2.150 lladdr 02:00:00:00:00:96 dev eth0 nud permanent");
        let reached = from(&device("sw_eth0"), "192.0.2.150").unwrap();
        assert_eq!(reached.link_address, Some([2, 0, 0, 0, 0, 0x96]));
    });
}

#[test]
fn the_route_must_leave_from_the_asking_port() {
    here(|device| {
        assert_eq!(errno_of(from(&device("sw_lo"), "192.0.2.2")), errno::ENXIO);
        assert_eq!(errno_of(from(&device("sw_lo"), "192.0.2.9")), errno::ENXIO);
    });
}

#[test]
fn gids_that_cannot_be_hosts_are_einval_whatever_the_ports_state() {
    here(|device| {
        let to = [
            "::",
            "0.0.0.0",
            "ff02::1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.255",
        ];
        for to in to {
            let refused = from(&device("sw_eth0"), to).unwrap_err();
            assert_eq!(refused.errno(), errno::EINVAL, "{to}: {refused}");
        }
        let refused = gid_reachable(&*device("sw_dark"), 1, gid("::"), PATIENCE);
        assert_eq!(errno_of(refused), errno::EINVAL);
    });
}

#[test]
fn port_0_chooses_a_port_and_one_that_does_not_exist_is_einval() {
    here(|device| {
        let device = device("sw_eth0");
        let by_number = gid_reachable(&*device, 1, gid("192.0.2.2"), PATIENCE);
        assert_eq!(by_number, from(&device, "192.0.2.2"));
        for port_num in [2, 255] {
            let refused = gid_reachable(&*device, port_num, gid("192.0.2.2"), PATIENCE);
            assert_eq!(errno_of(refused), errno::EINVAL);
        }
    });
}

#[test]
fn a_port_that_is_down_is_eio() {
    here(|device| {
        for port_num in [0, 1] {
            let refused =
                gid_reachable(&*device("sw_dark"), port_num, gid("203.0.113.2"), PATIENCE);
            assert_eq!(errno_of(refused), errno::EIO);
        }
    });
}

#[test]
fn a_missing_answer_is_eio_in_time() {
    here(|device| {
        let asked = Instant::now();
        let at_once = gid_reachable(&*device("sw_eth0"), 0, gid("192.0.2.8"), Duration::ZERO);
        // A silent neighbour is given up only after three seconds.
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "{:?}",
            asked.elapsed()
        );
        let late = at_once.unwrap_err();
        assert!(matches!(late.reason, Reason::Io(_)), "{late}");
    });
}

#[test]
fn many_gids_are_looked_up_in_parallel_with_one_result_each() {
    here(|device| {
        let port = Port::of(&*device("sw_eth0"), 0).unwrap();
        // Few of them exist; the others fail in parallel and not one after the other.
        let address = |place: usize| match place % 3 {
            0 => gid("192.0.2.2"),
            1 => gid("2001:db8::2"),
            _ => gid(&format!("192.0.2.{}", 10 + place % 100)),
        };
        let questions = (0..600).map(|place| (&port, address(place)));
        let mut told = vec![0; 600];
        reach_many(questions, PATIENCE, 64, |place, outcome| {
            told[place] += 1;
            match (place % 3, outcome) {
                (0 | 1, Ok(reached)) => assert_eq!(reached.link_address, Some(THERE_MAC)),
                (2, Err(unreachable)) => assert!(unreachable.is_no_path(), "{unreachable}"),
                (_, outcome) => panic!("{place}: {outcome:?}"),
            }
        });
        assert_eq!(told, vec![1; 600]);
    });
}

#[test]
fn the_look_up_can_be_awaited_and_dropped() {
    here(|device| {
        let port = Port::of(&*device("sw_eth0"), 0).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let reached = runtime.block_on(start(&port, gid("192.0.2.2"), PATIENCE));
        assert_eq!(reached, reach(&port, gid("192.0.2.2"), PATIENCE));
        for _ in 0..1000 {
            drop(start(&port, gid("192.0.2.77"), PATIENCE));
        }
        // More than a resolver takes at a time were released.
        let outcome = runtime.block_on(start(&port, gid("192.0.2.77"), PATIENCE));
        assert_eq!(errno_of(outcome), errno::ENXIO);
    });
}
