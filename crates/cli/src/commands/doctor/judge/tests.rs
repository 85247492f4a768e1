//! Each finding, from facts that differ from those of a healthy machine in one respect.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portolan::provider::{Choice, Offers};
use portolan::seam::verbs::Mtu;
use portolan::software::DevicePreview;

use super::judge;
use crate::commands::doctor::facts::*;
use crate::commands::doctor::finding::Severity::{self, Note, Problem};
use crate::commands::doctor::object::object;
use crate::commands::doctor::rules::{Action, Chain, Condition, Hook, Rule};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn device(interface: &str, index: u32, address: &str) -> DevicePreview {
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

/// A machine without RDMA hardware, on which nothing is in the way of the software device.
fn healthy() -> Facts {
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

/// A machine on which nothing is in the way of the kernel's devices.
fn healthy_kernel() -> Facts {
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

fn socket(owner: Owner, uid: u32) -> UdpSocket {
    UdpSocket {
        address: addr("0.0.0.0:4791"),
        uid,
        owner,
    }
}

fn chain(hook: Hook, rule: Rule) -> Chain {
    Chain {
        table: "inet t".into(),
        name: "c".into(),
        tool: "nft",
        hook: Some(hook),
        rules: vec![rule],
        ..Chain::default()
    }
}

fn rule(conditions: Vec<Condition>, action: Action) -> Rule {
    Rule {
        text: "the rule".into(),
        conditions,
        action,
    }
}

fn way(fault: Option<WayFault>) -> Way {
    Way {
        address: addr("10.0.0.7:7471"),
        source: Some(addr("10.0.0.1:0")),
        device: Some(("sw_eth0".into(), 0)),
        interface_index: Some(2),
        fault,
        reasons: vec![],
    }
}

fn to(ways: Result<Vec<Way>, String>) -> Option<Destination> {
    let text = "there:7471".into();
    Some(Destination { text, ways })
}

struct Case {
    code: &'static str,
    severity: Severity,
    /// A part of what is told.
    text: &'static str,
    remedy: &'static str,
    facts: Facts,
}

/// A case on one of the healthy machines, changed.
fn case(
    (code, severity): (&'static str, Severity),
    text: &'static str,
    remedy: &'static str,
    mut facts: Facts,
    change: impl FnOnce(&mut Facts),
) -> Case {
    change(&mut facts);
    Case {
        code,
        severity,
        text,
        remedy,
        facts,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = cases_of_the_software_device();
    cases.extend(cases_of_the_kernel());
    cases.extend(cases_of_the_network());
    cases
}

fn cases_of_the_software_device() -> Vec<Case> {
    let process = || Owner::Process {
        pid: 812,
        program: "nc".into(),
    };
    vec![
        case(
            ("provider-unknown", Problem),
            "no such",
            "unset PORTOLAN_PROVIDER",
            healthy(),
            |f| {
                f.provider = Some(Err("no such provider".into()));
            },
        ),
        case(
            ("software-no-device", Problem),
            "no network interface",
            "ip link set lo up",
            healthy(),
            |f| {
                f.software.clear();
            },
        ),
        case(
            ("port-held", Problem),
            "process 812 (nc)",
            "kill 812",
            healthy(),
            |f| {
                f.port.sockets.push(socket(process(), 1000));
            },
        ),
        case(
            ("port-held", Problem),
            "user 1000",
            "ss -ulpn",
            healthy(),
            |f| {
                f.port.sockets.push(socket(Owner::Unknown, 1000));
            },
        ),
        case(
            ("port-held", Problem),
            "process 812",
            "kill 812",
            healthy(),
            |f| {
                let group = Group {
                    holder_pid: 7,
                    pids: vec![7, 8],
                };
                f.port.group = Some(Ok(group));
                f.port.sockets.push(socket(process(), 1000));
            },
        ),
        case(
            ("port-held-by-kernel", Problem),
            "rdma_rxe",
            "modprobe -r rdma_rxe",
            healthy(),
            |f| {
                f.port.sockets.push(socket(Owner::Kernel, 0));
            },
        ),
        case(
            ("port-held-by-kernel", Problem),
            "(rxe0)",
            "PORTOLAN_PROVIDER=kernel",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.is_pinned = true;
                f.port.sockets.push(socket(Owner::Unknown, 0));
            },
        ),
        case(
            ("port-held-by-kernel", Note),
            "(rxe0)",
            "rdma link delete rxe0",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.port.sockets.push(socket(Owner::Kernel, 0));
            },
        ),
        case(
            ("port-held-by-kernel", Problem),
            "(rxe0)",
            "rdma link delete rxe0",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.port.sockets.push(socket(Owner::Kernel, 0));
                f.destination = to(Ok(vec![way(None)]));
            },
        ),
        case(
            ("group-unusable", Problem),
            "user 7",
            "portolan ps",
            healthy(),
            |f| {
                f.port.group = Some(Err("user 7 does not trust user 8".into()));
                f.port.sockets.push(socket(Owner::Unknown, 7));
            },
        ),
        case(
            ("hardware-takes-port", Problem),
            "mlx5_0 (mlx5_core)",
            "unset",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.is_pinned = true;
                f.kernel.devices[0].name = "mlx5_0".into();
                f.kernel.devices[0].driver = Some("mlx5_core".into());
            },
        ),
        case(
            ("kernel-device-could", Note),
            "rxe0",
            "unset",
            healthy_kernel(),
            |f| {
                f.provider = Some(Ok(Choice::Software));
                f.is_pinned = true;
            },
        ),
        case(
            ("interface-down", Note),
            "eth0",
            "ip link set eth0 up",
            healthy(),
            |f| {
                f.software[1].running = false;
            },
        ),
        case(
            ("interface-down", Problem),
            "eth0",
            "ip link set eth0 up",
            healthy(),
            |f| {
                f.software[1].running = false;
                f.destination = to(Ok(vec![way(None)]));
            },
        ),
        case(
            ("small-mtu", Note),
            "carry 1024",
            "mtu 4200",
            healthy(),
            |f| {
                f.software[1].interface_mtu = 1500;
                f.software[1].active_mtu = Mtu::Mtu1024;
            },
        ),
    ]
}

fn cases_of_the_kernel() -> Vec<Case> {
    vec![
        case(
            ("module-missing", Problem),
            "rdma_ucm is not loaded",
            "modprobe rdma_ucm",
            healthy_kernel(),
            |f| {
                f.kernel.modules[3].state = ModuleState::Available;
            },
        ),
        case(
            ("module-missing", Problem),
            "no module rdma_ucm",
            "install a kernel",
            healthy_kernel(),
            |f| {
                f.kernel.modules[3].state = ModuleState::Absent;
            },
        ),
        case(
            ("kernel-no-device", Problem),
            "no RDMA device",
            "netdev eth0",
            healthy_kernel(),
            |f| {
                f.kernel.devices.clear();
            },
        ),
        case(
            ("kernel-no-device", Problem),
            "no RDMA device",
            "=software",
            healthy_kernel(),
            |f| {
                f.kernel.devices.clear();
                f.kernel.modules.truncate(4);
            },
        ),
        case(
            ("node-missing", Problem),
            "/dev/infiniband/rdma_cm",
            "modprobe",
            healthy_kernel(),
            |f| {
                f.kernel.nodes.remove(0);
            },
        ),
        case(
            ("node-unusable", Problem),
            "uverbs0 (mode 0600)",
            "chmod a+rw",
            healthy_kernel(),
            |f| {
                f.kernel.nodes[1].mode = 0o600;
                f.kernel.nodes[1].is_usable = false;
            },
        ),
        case(
            ("rdma-cm-unusable", Problem),
            "too old",
            "modprobe",
            healthy_kernel(),
            |f| {
                f.kernel.offers = Some(Err("too old".into()));
            },
        ),
        case(
            ("verbs-unusable", Problem),
            "not found",
            "libibverbs1",
            healthy_kernel(),
            |f| {
                f.kernel.library = Some(Err("not found".into()));
            },
        ),
        case(
            ("verbs-drivers-missing", Problem),
            "no driver",
            "ibverbs-providers",
            healthy_kernel(),
            |f| {
                f.kernel.drivers.clear();
            },
        ),
        case(
            ("kernel-port-down", Problem),
            "rxe0 port 1 is DOWN",
            "rdma link show rxe0/1",
            healthy_kernel(),
            |f| {
                f.kernel.devices[0].ports[0].state = "DOWN".into();
            },
        ),
        case(
            ("kernel-port-down", Problem),
            "INIT",
            "subnet manager",
            healthy_kernel(),
            |f| {
                f.kernel.devices[0].ports[0].state = "INIT".into();
                f.kernel.devices[0].ports[0].link_layer = "InfiniBand".into();
            },
        ),
        case(
            ("memlock-low", Problem),
            "64 KiB",
            "ulimit -l unlimited",
            healthy_kernel(),
            |f| {
                f.host.memlock.soft = Some(65536);
            },
        ),
    ]
}

fn cases_of_the_network() -> Vec<Case> {
    let port = || vec![Condition::Udp(true), Condition::Port(true)];
    let interfaces = |f: &mut Facts| f.software.push(device("eth1", 3, "10.1.0.1"));
    vec![
        case(("container", Note), "lxc", "", healthy(), |f| {
            f.host.container = Some("lxc".into())
        }),
        case(
            ("firewall-stops", Problem),
            "come to UDP port 4791: inet t/c: the rule",
            "nft insert rule inet t c udp dport 4791 accept",
            healthy(),
            |f| {
                f.rules
                    .chains
                    .push(chain(Hook::Input, rule(port(), Action::Drop)))
            },
        ),
        case(
            ("firewall-stops", Problem),
            "sent to UDP port 4791: no rule of",
            "ip6tables -I OUTPUT -p udp --dport 4791 -j ACCEPT",
            healthy(),
            |f| {
                let mut chain = chain(Hook::Output, rule(vec![Condition::Other], Action::Accept));
                chain.tool = "ip6tables-save";
                chain.drops_by_default = true;
                f.rules.chains.push(chain);
            },
        ),
        case(
            ("translation", Problem),
            "(the rule)",
            "exempt",
            healthy(),
            |f| {
                f.rules
                    .chains
                    .push(chain(Hook::Postrouting, rule(vec![], Action::SourceNat)));
            },
        ),
        case(
            ("conntrack-full", Problem),
            "100 of at most 100",
            "nf_conntrack_max=200",
            healthy(),
            |f| {
                f.network.conntrack = Some((100, 100));
            },
        ),
        case(
            ("localhost-unknown", Note),
            "localhost",
            "127.0.0.1 localhost",
            healthy(),
            |f| f.names.hosts.clear(),
        ),
        case(
            ("hostname-is-loopback", Note),
            "pilot is 127.0.1.1",
            "/etc/hosts",
            healthy(),
            |f| {
                f.names.hosts.push((ip("127.0.1.1"), vec!["pilot".into()]));
            },
        ),
        case(
            ("name-server-missing", Note),
            "no name server",
            "resolv.conf",
            healthy(),
            |f| {
                f.names.name_servers.clear();
            },
        ),
        case(
            ("ipv6-disabled", Note),
            "on eth0",
            "conf.eth0.disable_ipv6=0",
            healthy(),
            |f| {
                f.network.interfaces[1].ipv6_disabled = true;
            },
        ),
        case(
            ("ipv6-disabled", Note),
            "kernel has no IPv6",
            "ipv6.disable",
            healthy(),
            |f| {
                f.network.has_ipv6 = false;
            },
        ),
        case(
            ("reverse-path-filter", Note),
            "eth0",
            "conf.eth0.rp_filter=2",
            healthy(),
            |f| {
                interfaces(f);
                f.network.interfaces[1].rp_filter = 1;
            },
        ),
        case(
            ("destination-unresolved", Problem),
            "there:7471: not known",
            "",
            healthy(),
            |f| {
                f.destination = to(Err("not known".into()));
            },
        ),
        case(
            ("destination-no-route", Problem),
            "10.0.0.7:7471: no route",
            "ip route get 10.0.0.7",
            healthy(),
            |f| {
                let fault = WayFault::NoRoute("no route".into());
                f.destination = to(Ok(vec![way(Some(fault))]));
            },
        ),
        case(
            ("destination-no-route", Note),
            "no route",
            "ip route get",
            healthy(),
            |f| {
                let fault = WayFault::NoRoute("no route".into());
                f.destination = to(Ok(vec![way(None), way(Some(fault))]));
            },
        ),
        case(
            ("destination-no-device", Problem),
            "from 10.9.0.1",
            "portolan devices",
            healthy(),
            |f| {
                let fault = WayFault::NoDevice(ip("10.9.0.1"));
                f.destination = to(Ok(vec![way(Some(fault))]));
            },
        ),
    ]
}

#[test]
fn a_healthy_machine_has_no_findings() {
    assert_eq!(judge(&healthy()), []);
    assert_eq!(judge(&healthy_kernel()), []);
    let mut by_route = healthy_kernel();
    by_route.provider = Some(Ok(Choice::Software));
    assert_eq!(judge(&by_route), []);
}

#[test]
fn each_finding_is_made_of_its_facts_and_of_no_others() {
    for case in cases() {
        let found = judge(&case.facts);
        let [one] = found.as_slice() else {
            panic!("{}: {found:#?}", case.code)
        };
        let (text, remedy) = (one.finding.text(), one.finding.remedy().unwrap_or_default());
        assert_eq!(
            (one.finding.code(), one.severity),
            (case.code, case.severity),
            "{text}"
        );
        assert!(text.contains(case.text), "{}: {text}", case.code);
        assert!(remedy.contains(case.remedy), "{}: {remedy}", case.code);
        assert_eq!(
            remedy.is_empty(),
            case.remedy.is_empty(),
            "{}: {remedy}",
            case.code
        );
    }
}

#[test]
fn every_code_is_tried_here_and_documented() {
    const DOCUMENT: &str = include_str!("../../../../../../docs/doctor.md");
    let tried: BTreeSet<&str> = cases().iter().map(|case| case.code).collect();
    let rows = DOCUMENT.lines().skip_while(|line| *line != "## Findings");
    let documented: BTreeSet<&str> = rows
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(tried, documented);
}

#[test]
fn the_object_has_the_documented_keys() {
    const DOCUMENT: &str = include_str!("../../../../../../docs/doctor.md");
    let mut facts = healthy_kernel();
    facts.destination = to(Ok(vec![way(None)]));
    facts.port.group = Some(Ok(Group {
        holder_pid: 7,
        pids: vec![7],
    }));
    facts.port.sockets.push(socket(Owner::Kernel, 0));
    facts.host.container = Some("lxc".into());
    facts.unseen.push(Unseen {
        what: "firewall rules".into(),
        why: "root alone sees them".into(),
    });
    let found = judge(&facts);
    let mut keys = BTreeSet::new();
    collect_keys(&object(&facts, &found), "", &mut keys);
    // The names of modules are keys of the machine's own.
    keys.retain(|key| !key.starts_with("kernel.modules."));
    let rows = DOCUMENT.lines().take_while(|line| *line != "## Findings");
    let documented: BTreeSet<String> = rows
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    assert_eq!(keys, documented);
}

/// The paths of all keys; what is in lists is `key[]`.
fn collect_keys(value: &serde_json::Value, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect_keys(value, &path, keys);
            }
        }
        serde_json::Value::Array(values) if values.iter().any(serde_json::Value::is_object) => {
            for value in values {
                collect_keys(value, &format!("{path}[]"), keys);
            }
        }
        _ => {
            keys.insert(path.to_owned());
        }
    }
}

#[test]
fn the_kernels_own_port_is_no_news_to_whoever_uses_its_devices() {
    let mut facts = healthy_kernel();
    facts.port.sockets.push(socket(Owner::Kernel, 0));
    assert_eq!(judge(&facts), []);
}

#[test]
fn the_members_own_sockets_are_nobodys_trouble() {
    let mut facts = healthy();
    facts.port.group = Some(Ok(Group {
        holder_pid: 7,
        pids: vec![7],
    }));
    let program = "portolan".into();
    facts
        .port
        .sockets
        .push(socket(Owner::Process { pid: 7, program }, 0));
    // Parked in a message, where no process has it.
    facts.port.sockets.push(socket(Owner::Kernel, 0));
    assert_eq!(judge(&facts), []);
}
