//! The rules of the port table.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use portolan_cm::ports::{BindOptions, PortConfig, PortTable};
use portolan_provider::Cause;
use portolan_wire::{PortSpace, ServiceId};
use proptest::prelude::*;

const TCP: PortSpace = PortSpace::Tcp;
const PLAIN_V4: BindOptions = BindOptions {
    reuse_addr: false,
    af_only: true,
    privileged: false,
};
const PLAIN_V6: BindOptions = BindOptions {
    reuse_addr: false,
    af_only: false,
    privileged: false,
};

fn table() -> PortTable<u32> {
    PortTable::new(PortConfig::default(), 7)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn in_use_by(owner: u32) -> Cause {
    Cause::AddressInUse {
        holder: Some(owner.to_string()),
    }
}

#[test]
fn the_same_address_and_port_cannot_be_bound_twice_and_the_error_names_the_holder() {
    let mut ports = table();
    ports
        .bind(1, TCP, at("10.0.0.1:7471"), PLAIN_V4, 0)
        .unwrap();
    let again = ports.bind(2, TCP, at("10.0.0.1:7471"), PLAIN_V4, 0);
    assert_eq!(again, Err(in_use_by(1)));
}

#[test]
fn another_address_another_port_and_another_port_space_do_not_conflict() {
    let mut ports = table();
    ports
        .bind(1, TCP, at("10.0.0.1:7471"), PLAIN_V4, 0)
        .unwrap();
    ports
        .bind(2, TCP, at("10.0.0.2:7471"), PLAIN_V4, 0)
        .unwrap();
    ports
        .bind(2, TCP, at("10.0.0.1:7472"), PLAIN_V4, 0)
        .unwrap();
    ports
        .bind(2, PortSpace::Udp, at("10.0.0.1:7471"), PLAIN_V4, 0)
        .unwrap();
}

#[test]
fn a_wildcard_and_a_specific_address_conflict_in_either_order() {
    for (first, second) in [
        ("0.0.0.0:7471", "10.0.0.1:7471"),
        ("10.0.0.1:7471", "0.0.0.0:7471"),
    ] {
        let mut ports = table();
        ports.bind(1, TCP, at(first), PLAIN_V4, 0).unwrap();
        assert_eq!(
            ports.bind(2, TCP, at(second), PLAIN_V4, 0),
            Err(in_use_by(1))
        );
    }
}

#[test]
fn wildcards_of_both_families_live_together_only_if_both_keep_to_their_own() {
    let v6_only = BindOptions {
        af_only: true,
        ..PLAIN_V6
    };
    let mut ports = table();
    ports.bind(1, TCP, at("0.0.0.0:7471"), PLAIN_V4, 0).unwrap();
    assert_eq!(
        ports.bind(2, TCP, at("[::]:7471"), PLAIN_V6, 0),
        Err(in_use_by(1))
    );
    ports.bind(2, TCP, at("[::]:7471"), v6_only, 0).unwrap();
}

#[test]
fn link_local_addresses_of_two_links_do_not_conflict() {
    let mut ports = table();
    ports
        .bind(1, TCP, at("[fe80::1%2]:7471"), PLAIN_V6, 0)
        .unwrap();
    ports
        .bind(2, TCP, at("[fe80::1%3]:7471"), PLAIN_V6, 0)
        .unwrap();
    assert_eq!(
        ports.bind(3, TCP, at("[fe80::1%3]:7471"), PLAIN_V6, 0),
        Err(in_use_by(2))
    );
}

#[test]
fn a_port_is_shared_if_both_agree_and_only_until_one_listens() {
    let shared = BindOptions {
        reuse_addr: true,
        ..PLAIN_V4
    };
    let mut ports = table();
    let first = ports.bind(1, TCP, at("0.0.0.0:7471"), shared, 0).unwrap();
    assert_eq!(
        ports.bind(2, TCP, at("0.0.0.0:7471"), PLAIN_V4, 0),
        Err(in_use_by(1))
    );
    let second = ports.bind(2, TCP, at("0.0.0.0:7471"), shared, 0).unwrap();
    assert_eq!(ports.listen(second.binding), Err(in_use_by(1)));
    ports.release(first.binding);
    ports.listen(second.binding).unwrap();
    // A listener shares its port with nobody, whatever its options were.
    assert_eq!(
        ports.bind(3, TCP, at("0.0.0.0:7471"), shared, 0),
        Err(in_use_by(2))
    );
}

#[test]
fn ports_below_1024_need_the_right_to_them() {
    let mut ports = table();
    let refused = ports.bind(1, TCP, at("10.0.0.1:1023"), PLAIN_V4, 0);
    assert_eq!(refused, Err(Cause::PrivilegedPort { port: 1023 }));
    let privileged = BindOptions {
        privileged: true,
        ..PLAIN_V4
    };
    ports
        .bind(1, TCP, at("10.0.0.1:1023"), privileged, 0)
        .unwrap();
}

#[test]
fn each_ephemeral_port_is_given_once_and_then_the_error_contains_their_range() {
    let config = PortConfig {
        ephemeral: 50_000..=50_009,
        ..PortConfig::default()
    };
    let mut ports = PortTable::new(config, 7);
    let given: HashSet<u16> = (0..10u32)
        .map(|seed| {
            ports
                .bind(seed, TCP, at("10.0.0.1:0"), PLAIN_V4, seed * 77)
                .unwrap()
                .port
        })
        .collect();
    assert_eq!(given, (50_000..=50_009).collect());
    let exhausted = ports.bind(10, TCP, at("10.0.0.1:0"), PLAIN_V4, 5);
    assert_eq!(
        exhausted,
        Err(Cause::PortsExhausted {
            first: 50_000,
            last: 50_009
        })
    );
    assert_eq!(exhausted.unwrap_err().errno(), 99, "EADDRNOTAVAIL");
}

fn with_all_ephemeral_ports_taken_but(free: Option<u16>) -> PortTable<u32> {
    let mut ports = table();
    for port in PortConfig::default().ephemeral {
        if Some(port) != free {
            let address = SocketAddr::new([10, 0, 0, 1].into(), port);
            ports.bind(1, TCP, address, PLAIN_V4, 0).unwrap();
        }
    }
    ports
}

#[test]
fn the_last_free_ephemeral_port_is_found_wherever_the_search_begins() {
    let ephemeral = PortConfig::default().ephemeral;
    for free in [*ephemeral.start(), 40_000, *ephemeral.end()] {
        let mut ports = with_all_ephemeral_ports_taken_but(Some(free));
        for seed in (0..28_232).step_by(997) {
            let found = ports
                .bind(1, TCP, at("10.0.0.1:0"), PLAIN_V4, seed)
                .unwrap();
            assert_eq!(found.port, free, "from {seed}");
            let none = ports.bind(1, TCP, at("10.0.0.1:0"), PLAIN_V4, seed);
            assert!(matches!(none, Err(Cause::PortsExhausted { .. })));
            // Each port space has its own ports.
            let udp = ports.bind(1, PortSpace::Udp, at("10.0.0.1:0"), PLAIN_V4, seed);
            assert_eq!(udp.unwrap().port, 32_768 + seed as u16);
            ports.release(found.binding);
        }
    }
}

#[test]
fn a_shared_ephemeral_port_is_free_after_its_last_holder() {
    let config = PortConfig {
        ephemeral: 50_000..=50_000,
        ..PortConfig::default()
    };
    let shared = BindOptions {
        reuse_addr: true,
        ..PLAIN_V4
    };
    let mut ports = PortTable::new(config, 7);
    let first = ports.bind(1, TCP, at("10.0.0.1:0"), shared, 0).unwrap();
    let second = ports.bind(2, TCP, at("10.0.0.1:50000"), shared, 0).unwrap();
    ports.release(first.binding);
    let taken = ports.bind(3, TCP, at("10.0.0.1:0"), shared, 0);
    assert!(matches!(taken, Err(Cause::PortsExhausted { .. })));
    ports.release_owner(&2);
    ports.release(second.binding);
    let again = ports.bind(3, TCP, at("10.0.0.1:0"), shared, 0).unwrap();
    assert_eq!(again.port, 50_000);
}

#[test]
fn a_bind_costs_no_more_when_all_ephemeral_ports_are_taken() {
    const BINDS: u32 = 50;
    // Searching the range port by port would cost about ten thousand times as much.
    const DEARER_MAX: u32 = 20;
    /// The shortest of several runs, which the machine's load disturbs least.
    fn time(ports: &mut PortTable<u32>) -> Duration {
        let run = |_| {
            let start = Instant::now();
            for seed in 0..BINDS {
                let bound = ports.bind(1, TCP, at("10.0.0.1:0"), PLAIN_V4, seed * 7919);
                if let Ok(bound) = bound {
                    ports.release(bound.binding);
                }
            }
            start.elapsed()
        };
        (0..3).map(run).min().unwrap()
    }
    let empty = time(&mut table());
    for free in [None, Some(40_000)] {
        let full = time(&mut with_all_ephemeral_ports_taken_but(free));
        assert!(
            full < empty * DEARER_MAX,
            "{BINDS} binds took {full:?}, {empty:?} in an empty table"
        );
    }
}

#[test]
fn the_seed_decides_where_the_search_begins() {
    let first = table()
        .bind(1, TCP, at("10.0.0.1:0"), PLAIN_V4, 1)
        .unwrap()
        .port;
    let second = table()
        .bind(1, TCP, at("10.0.0.1:0"), PLAIN_V4, 2)
        .unwrap()
        .port;
    assert_ne!(first, second);
}

#[test]
fn a_full_table_refuses_and_a_release_makes_room() {
    let config = PortConfig {
        max_bindings: 1,
        ..PortConfig::default()
    };
    let mut ports = PortTable::new(config, 7);
    let first = ports
        .bind(1, TCP, at("10.0.0.1:7471"), PLAIN_V4, 0)
        .unwrap();
    let full = ports.bind(1, TCP, at("10.0.0.1:7472"), PLAIN_V4, 0);
    assert!(
        matches!(full, Err(Cause::LimitReached { limit: 1, .. })),
        "{full:?}"
    );
    ports.release(first.binding);
    ports
        .bind(1, TCP, at("10.0.0.1:7472"), PLAIN_V4, 0)
        .unwrap();
}

#[test]
fn a_request_goes_to_the_listener_of_its_exact_address_or_else_to_the_wildcard() {
    let v6_only = BindOptions {
        af_only: true,
        ..PLAIN_V6
    };
    let mut ports = table();
    let wildcard = ports.bind(1, TCP, at("[::]:7471"), v6_only, 0).unwrap();
    let specific = ports
        .bind(2, TCP, at("10.0.0.1:7471"), PLAIN_V4, 0)
        .unwrap();
    let service = ServiceId::from_port(TCP, 7471);
    let v4: IpAddr = [10, 0, 0, 1].into();
    assert_eq!(
        ports.lookup(service, v4, 0),
        None,
        "a bound id does not listen"
    );
    ports.listen(wildcard.binding).unwrap();
    ports.listen(specific.binding).unwrap();
    assert_eq!(ports.lookup(service, v4, 0), Some(2));
    assert_eq!(ports.lookup(service, [10, 0, 0, 2].into(), 0), None);
    assert_eq!(
        ports.lookup(service, "2001:db8::1".parse().unwrap(), 0),
        Some(1)
    );
    assert_eq!(ports.lookup(ServiceId::from_port(TCP, 7472), v4, 0), None);
    assert_eq!(
        ports.lookup(ServiceId(0x1000_0000_0106_1D2F), v4, 0),
        None,
        "a foreign service id"
    );
}

#[test]
fn a_wildcard_of_both_families_serves_both() {
    let mut ports = table();
    let wildcard = ports.bind(1, TCP, at("[::]:7471"), PLAIN_V6, 0).unwrap();
    ports.listen(wildcard.binding).unwrap();
    assert_eq!(
        ports.lookup(ServiceId::from_port(TCP, 7471), [10, 0, 0, 1].into(), 0),
        Some(1)
    );
}

#[test]
fn a_link_local_address_is_served_by_the_listener_of_its_interface() {
    let mut ports = table();
    for zone in [3, 4] {
        let address = SocketAddrV6::new("fe80::77".parse().unwrap(), 7471, 0, zone);
        let bound = ports.bind(zone, TCP, address.into(), PLAIN_V6, 0).unwrap();
        let (service, ip) = (ServiceId::from_port(TCP, 7471), (*address.ip()).into());
        assert_eq!(ports.lookup_bound(service, ip, zone), Some(zone));
        ports.listen(bound.binding).unwrap();
        assert_eq!(ports.lookup(service, ip, zone), Some(zone));
        assert_eq!(ports.lookup(service, ip, 5), None);
        assert_eq!(ports.lookup(service, ip, 0), Some(3), "any");
    }
}

#[test]
fn a_dead_owner_loses_all_its_ports_and_no_other_owner_any() {
    let mut ports = table();
    for port in 7000..7010 {
        let address = SocketAddr::new([10, 0, 0, 1].into(), port);
        ports
            .bind(u32::from(port % 2), TCP, address, PLAIN_V4, 0)
            .unwrap();
    }
    ports.release_owner(&1);
    assert_eq!(ports.len(), 5);
    ports
        .bind(3, TCP, at("10.0.0.1:7001"), PLAIN_V4, 0)
        .unwrap();
    assert_eq!(
        ports.bind(3, TCP, at("10.0.0.1:7000"), PLAIN_V4, 0),
        Err(in_use_by(0))
    );
}

#[derive(Clone, Debug)]
enum Operation {
    Bind {
        owner: u32,
        address: usize,
        port: u16,
        options: BindOptions,
    },
    Listen(usize),
    Release(usize),
    ReleaseOwner(u32),
}

const ADDRESSES: [&str; 4] = ["0.0.0.0", "10.0.0.1", "::", "2001:db8::1"];

fn operation() -> impl Strategy<Value = Operation> {
    let options = (any::<bool>(), any::<bool>()).prop_map(|(reuse_addr, af_only)| BindOptions {
        reuse_addr,
        af_only,
        privileged: false,
    });
    prop_oneof![
        4 => (0u32..3, 0..ADDRESSES.len(), 2000u16..2004, options).prop_map(
            |(owner, address, port, options)| Operation::Bind { owner, address, port, options }
        ),
        2 => any::<usize>().prop_map(Operation::Listen),
        2 => any::<usize>().prop_map(Operation::Release),
        1 => (0u32..3).prop_map(Operation::ReleaseOwner),
    ]
}

proptest! {
    #[test]
    fn no_two_listeners_ever_serve_one_address_and_releasing_all_leaves_nothing(
        operations in prop::collection::vec(operation(), 0..60),
    ) {
        let mut ports = table();
        let mut bound = Vec::new();
        let mut listening = HashSet::new();
        for operation in operations {
            match operation {
                Operation::Bind { owner, address, port, options } => {
                    let address = SocketAddr::new(ADDRESSES[address].parse().unwrap(), port);
                    if let Ok(new) = ports.bind(owner, TCP, address, options, 0) {
                        prop_assert_eq!(new.port, port);
                        bound.push((new.binding, options));
                    }
                }
                Operation::Listen(which) if !bound.is_empty() => {
                    let (binding, options) = bound[which % bound.len()];
                    if ports.listen(binding).is_ok() {
                        listening.insert((binding, options.af_only));
                    }
                }
                Operation::Release(which) if !bound.is_empty() => {
                    let (binding, options) = bound.swap_remove(which % bound.len());
                    ports.release(binding);
                    listening.remove(&(binding, options.af_only));
                }
                Operation::ReleaseOwner(owner) => {
                    ports.release_owner(&owner);
                    bound.retain(|(binding, _)| ports.binding(*binding).is_some());
                    listening.retain(|(binding, _)| ports.binding(*binding).is_some());
                }
                Operation::Listen(_) | Operation::Release(_) => {}
            }
            let served = listening.iter().map(|(binding, af_only)| {
                let (_, address) = ports.binding(*binding).unwrap();
                (address, *af_only)
            });
            let served: Vec<_> = served.collect();
            for destination in ["10.0.0.1", "2001:db8::1"] {
                let destination: IpAddr = destination.parse().unwrap();
                for port in 2000..2004 {
                    let takers = served.iter().filter(|(address, af_only)| {
                        let any = address.ip().is_unspecified()
                            && (!af_only || address.is_ipv4() == destination.is_ipv4());
                        address.port() == port && (any || address.ip() == destination)
                    });
                    let service = ServiceId::from_port(TCP, port);
                    let count = takers.count();
                    prop_assert!(count <= 1, "{} listeners at {}:{}", count, destination, port);
                    prop_assert_eq!(ports.lookup(service, destination, 0).is_some(), count == 1);
                }
            }
        }
        for (binding, _) in bound {
            ports.release(binding);
        }
        prop_assert!(ports.is_empty());
    }
}
