//! Healthy machines, and facts that other machines may have.

use std::net::{IpAddr, SocketAddr};

use portolan::provider::verbs::Mtu;
use portolan::provider::{Choice, Offers};
use portolan::software::DevicePreview;

use crate::commands::doctor::facts::*;
use crate::commands::doctor::rules::{Action, Chain, Condition, Hook, Rule};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn device(interface: &str, index: u32, address: &str) -> DevicePreview {
    DevicePreview {
        node_guid: u64::from(index),
        name: format!("sw_{interface}"),
        interface: interface.into(),
        interface_index: index,
        gids: vec![ip(address)],
        interface_mtu: 9000,
        active_mtu: Mtu::Mtu4096,
        running: true,
    }
}

/// A machine without RDMA hardware where the software device has no problems.
pub(super) fn healthy() -> Facts {
    Facts {
        provider: Some(Ok(Choice::Software)),
        host: Host {
            name: "pilot".into(),
            release: "6.1.0".into(),
            ..Host::default()
        },
        software: vec![device("lo", 1, "127.0.0.1"), device("eth0", 2, "10.0.0.1")],
        network: Network {
            has_ipv6: true,
            interfaces: ["lo", "eth0", "eth1"]
                .map(|name| Interface {
                    name: name.into(),
                    ..Interface::default()
                })
                .into(),
            loopback_down: None,
            conntrack: Some((10, 100)),
        },
        names: Names {
            hosts: vec![(ip("127.0.0.1"), vec!["localhost".into()])],
            name_servers: vec![ip("10.0.0.53")],
            asks_dns: true,
        },
        ..Facts::default()
    }
}

/// A machine where the kernel's devices have no problems.
pub(super) fn healthy_kernel() -> Facts {
    let mut facts = healthy();
    facts.provider = Some(Ok(Choice::Kernel));
    let offers = Offers {
        write_event: false,
        ib_service: false,
    };
    let node = |path: &str| Node {
        path: path.into(),
        mode: 0o666,
        is_usable: true,
    };
    facts.kernel = Kernel {
        modules: ["ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe"]
            .map(|name| Module {
                name,
                state: ModuleState::Loaded,
            })
            .into(),
        rdma_cm_abi: Some(4),
        offers: Some(Ok(offers)),
        nodes: vec![
            node("/dev/infiniband/rdma_cm"),
            node("/dev/infiniband/uverbs0"),
        ],
        library: Some(Ok("/lib/libibverbs.so.1".into())),
        drivers: vec!["rxe".into()],
        devices: vec![KernelDevice {
            name: "rxe0".into(),
            ports: vec![Port {
                number: 1,
                state: "ACTIVE".into(),
                link_layer: "Ethernet".into(),
                gids: vec![PortGid {
                    index: 1,
                    gid: "::ffff:10.0.0.1".into(),
                    kind: Some("RoCE v2".into()),
                    interface: Some("eth0".into()),
                }],
                ..Port::default()
            }],
            ..KernelDevice::default()
        }],
        ..Kernel::default()
    };
    facts
}

pub(super) fn socket(owner: Owner, uid: u32) -> UdpSocket {
    UdpSocket {
        address: addr("0.0.0.0:4791"),
        uid,
        owner,
    }
}

pub(super) fn chain(hook: Hook, rule: Rule) -> Chain {
    Chain {
        table: "inet t".into(),
        name: "c".into(),
        tool: "nft",
        hook: Some(hook),
        rules: vec![rule],
        ..Chain::default()
    }
}

pub(super) fn rule(conditions: Vec<Condition>, action: Action) -> Rule {
    Rule {
        text: "the rule".into(),
        conditions,
        action,
    }
}

pub(super) fn way(fault: Option<WayFault>) -> Way {
    Way {
        address: addr("10.0.0.7:7471"),
        source: Some(addr("10.0.0.1:0")),
        device: Some(("sw_eth0".into(), 0)),
        interface_index: Some(2),
        fault,
        reasons: vec![],
    }
}

pub(super) fn to(ways: Result<Vec<Way>, String>) -> Option<Destination> {
    let text = "there:7471".into();
    Some(Destination { text, ways })
}
