//! Findings, with their text for people and a remedy.

use std::net::{IpAddr, SocketAddr};

use super::facts::{Memlock, ModuleState};
use super::rules::Hook;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// For information.
    Note,
    /// Prevents the use of what would be used.
    Problem,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// A finding and its severity on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) severity: Severity,
    pub(super) finding: Finding,
}

/// The holder of a port that the software device needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Process { pid: u32, program: String },
    User(u32),
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    ConntrackFull {
        count: u64,
        max: u64,
    },
    Container {
        kind: String,
    },
    DestinationHasNoDevice {
        address: SocketAddr,
        source: IpAddr,
    },
    DestinationHasNoRoute {
        address: SocketAddr,
        why: String,
    },
    DestinationUnresolved {
        text: String,
        why: String,
    },
    FirewallStops {
        hook: Hook,
        chain: String,
        rule: Option<String>,
        tool: &'static str,
    },
    GroupUnusable {
        why: String,
    },
    HostnameIsLoopback {
        name: String,
        address: IpAddr,
    },
    InterfaceDown {
        interface: String,
    },
    Ipv6Disabled {
        interface: Option<String>,
    },
    KernelDeviceCould {
        device: String,
        interface: String,
    },
    KernelHasNoDevice {
        rxe: ModuleState,
        interface: Option<String>,
    },
    KernelPortDown {
        device: String,
        port: u32,
        state: String,
        link_layer: String,
    },
    LocalhostUnknown,
    MemlockLow {
        limit: Memlock,
    },
    ModuleMissing {
        name: &'static str,
        state: ModuleState,
    },
    NameServerMissing,
    NodeMissing {
        path: &'static str,
    },
    NodeUnusable {
        path: String,
        mode: u32,
    },
    PortHeld {
        address: SocketAddr,
        holder: Holder,
    },
    PortHeldByKernel {
        address: SocketAddr,
        device: Option<String>,
    },
    ProviderUnknown {
        why: String,
    },
    RdmaCmUnusable {
        why: String,
    },
    ReversePathFilter {
        interface: String,
    },
    HardwareTakesPort {
        device: String,
        driver: String,
        interface: String,
    },
    SmallMtu {
        interface: String,
        mtu: u32,
        path_mtu: u32,
    },
    SoftwareHasNoDevice,
    Translation {
        chain: String,
        rule: String,
    },
    VerbsDriversMissing,
    VerbsUnusable {
        why: String,
    },
}

impl Finding {
    /// Its stable name for machines.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::ConntrackFull { .. } => "conntrack-full",
            Self::Container { .. } => "container",
            Self::DestinationHasNoDevice { .. } => "destination-no-device",
            Self::DestinationHasNoRoute { .. } => "destination-no-route",
            Self::DestinationUnresolved { .. } => "destination-unresolved",
            Self::FirewallStops { .. } => "firewall-stops",
            Self::GroupUnusable { .. } => "group-unusable",
            Self::HardwareTakesPort { .. } => "hardware-takes-port",
            Self::HostnameIsLoopback { .. } => "hostname-is-loopback",
            Self::InterfaceDown { .. } => "interface-down",
            Self::Ipv6Disabled { .. } => "ipv6-disabled",
            Self::KernelDeviceCould { .. } => "kernel-device-could",
            Self::KernelHasNoDevice { .. } => "kernel-no-device",
            Self::KernelPortDown { .. } => "kernel-port-down",
            Self::LocalhostUnknown => "localhost-unknown",
            Self::MemlockLow { .. } => "memlock-low",
            Self::ModuleMissing { .. } => "module-missing",
            Self::NameServerMissing => "name-server-missing",
            Self::NodeMissing { .. } => "node-missing",
            Self::NodeUnusable { .. } => "node-unusable",
            Self::PortHeld { .. } => "port-held",
            Self::PortHeldByKernel { .. } => "port-held-by-kernel",
            Self::ProviderUnknown { .. } => "provider-unknown",
            Self::RdmaCmUnusable { .. } => "rdma-cm-unusable",
            Self::ReversePathFilter { .. } => "reverse-path-filter",
            Self::SmallMtu { .. } => "small-mtu",
            Self::SoftwareHasNoDevice => "software-no-device",
            Self::Translation { .. } => "translation",
            Self::VerbsDriversMissing => "verbs-drivers-missing",
            Self::VerbsUnusable { .. } => "verbs-unusable",
        }
    }

    /// The finding, and why it matters.
    pub(super) fn text(&self) -> String {
        match self {
            Self::ConntrackFull { count, max } => format!(
                "connection tracking follows {count} of at most {max} connections: new ones are dropped"
            ),
            Self::Container { kind } => format!(
                "this is a container ({kind}): devices, modules and firewall are its host's, and address \
                 translation on the way breaks RoCEv2's checksum"
            ),
            Self::DestinationHasNoDevice { address, source } => {
                format!(
                    "{} is reached from {source}, which no RDMA device has",
                    address_text(*address)
                )
            }
            Self::DestinationHasNoRoute { address, why } => {
                format!("{}: {why}", address_text(*address))
            }
            Self::DestinationUnresolved { text, why } => {
                // Most of the library's errors begin with the query.
                if why.contains(text) {
                    why.clone()
                } else {
                    format!("{text}: {why}")
                }
            }
            Self::FirewallStops {
                hook, chain, rule, ..
            } => {
                let way = match hook {
                    Hook::Output => "sent to",
                    _ => "that come to",
                };
                match rule {
                    Some(rule) => {
                        format!("the firewall drops packets {way} UDP port 4791: {chain}: {rule}")
                    }
                    None => format!(
                        "the firewall drops packets {way} UDP port 4791: no rule of {chain} accepts them, \
                         and its policy is to drop"
                    ),
                }
            }
            Self::GroupUnusable { why } => format!("UDP port 4791 cannot be shared: {why}"),
            Self::HardwareTakesPort {
                device,
                driver,
                interface,
            } => format!(
                "{device} ({driver}) may take packets for UDP port 4791 from {interface} before any \
                 program sees them: the software device there may hear nothing"
            ),
            Self::HostnameIsLoopback { name, address } => format!(
                "{name} is {address} in /etc/hosts: a server that listens by this host's name is reached from this host only"
            ),
            Self::InterfaceDown { interface } => {
                format!("{interface} is not up and running")
            }
            Self::Ipv6Disabled {
                interface: Some(interface),
            } => format!("IPv6 is disabled on {interface}"),
            Self::Ipv6Disabled { interface: None } => "the kernel has no IPv6".into(),
            Self::KernelDeviceCould { device, interface } => format!(
                "the kernel's {device} serves {interface}, too, but PORTOLAN_PROVIDER pins the software device"
            ),
            Self::KernelHasNoDevice { .. } => "the kernel has no RDMA device".into(),
            Self::KernelPortDown {
                device,
                port,
                state,
                ..
            } => format!("{device} port {port} is {state}"),
            Self::LocalhostUnknown => "localhost is not in /etc/hosts".into(),
            Self::MemlockLow { limit } => format!(
                "{} may be locked: memory regions of the kernel's devices must fit into that",
                limit
                    .soft
                    .map_or_else(|| "all memory".into(), crate::text::bytes)
            ),
            Self::ModuleMissing { name, state } => match state {
                ModuleState::Available => format!("the kernel module {name} is not loaded"),
                _ => format!("the running kernel has no module {name}"),
            },
            Self::NameServerMissing => {
                "/etc/resolv.conf names no name server, and hosts are looked up there".into()
            }
            Self::NodeMissing { path } => format!("there is no {path}"),
            Self::NodeUnusable { path, mode } => {
                format!("{path} (mode {mode:04o}) may not be read and written by this user")
            }
            Self::PortHeld { address, holder } => match holder {
                Holder::Process { pid, program } => format!(
                    "process {pid} ({program}) holds UDP {address}: the software device cannot have the port"
                ),
                Holder::User(uid) => format!(
                    "a process of user {uid} holds UDP {address}: the software device cannot have the port"
                ),
            },
            Self::PortHeldByKernel { address, device } => match device {
                Some(device) => format!("the kernel's rdma_rxe ({device}) holds UDP {address}"),
                None => format!("the kernel itself (rdma_rxe?) holds UDP {address}"),
            },
            Self::ProviderUnknown { why } => why.clone(),
            Self::RdmaCmUnusable { why } => {
                format!("the kernel's rdma_cm device cannot be used: {why}")
            }
            Self::ReversePathFilter { interface } => format!(
                "{interface} filters strictly by reverse path, and several interfaces have addresses: what comes in by \
                 another interface than answers would leave by is dropped"
            ),
            Self::SmallMtu {
                interface,
                mtu,
                path_mtu,
            } => format!(
                "{interface} has an MTU of {mtu}, so packets carry {path_mtu} bytes; 4200 would give 4096"
            ),
            Self::SoftwareHasNoDevice => {
                "no network interface has an address, so there is no software device".into()
            }
            Self::Translation { chain, rule } => format!(
                "{chain} translates addresses ({rule}): RoCEv2's checksum covers them, so such packets arrive broken"
            ),
            Self::VerbsDriversMissing => "libibverbs has no driver of any device".into(),
            Self::VerbsUnusable { why } => format!("libibverbs cannot be used: {why}"),
        }
    }

    /// The remedy: what to type or do.
    pub(super) fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Container { .. } | Self::DestinationUnresolved { .. } => return None,
            Self::ConntrackFull { max, .. } => {
                format!("sysctl -w net.netfilter.nf_conntrack_max={}", max.saturating_mul(2))
            }
            Self::DestinationHasNoDevice { source, .. } => format!("portolan devices; ip address show to {source}"),
            Self::DestinationHasNoRoute { address, .. } => format!("ip route get {}", address.ip()),
            Self::FirewallStops { hook, tool, chain, .. } => accept_rule(*hook, tool, chain),
            Self::GroupUnusable { .. } => "portolan ps".into(),
            Self::HardwareTakesPort { .. } | Self::KernelDeviceCould { .. } => {
                "unset PORTOLAN_PROVIDER".into()
            }
            Self::HostnameIsLoopback { name, .. } => {
                format!("listen on an address, or give {name} its own one in /etc/hosts")
            }
            Self::InterfaceDown { interface } => format!("ip link set {interface} up; ip link show {interface}"),
            Self::Ipv6Disabled { interface: Some(interface) } => {
                format!("sysctl -w net.ipv6.conf.{}.disable_ipv6=0", interface.replace('.', "/"))
            }
            Self::Ipv6Disabled { interface: None } => "boot without ipv6.disable=1".into(),
            Self::KernelHasNoDevice { rxe, interface } => {
                let interface = interface.as_deref().unwrap_or("INTERFACE");
                let add = format!("rdma link add rxe0 type rxe netdev {interface}");
                match rxe {
                    ModuleState::Absent => "export PORTOLAN_PROVIDER=software".into(),
                    ModuleState::Available => format!("modprobe rdma_rxe; {add}"),
                    ModuleState::Loaded | ModuleState::BuiltIn => add,
                }
            }
            Self::KernelPortDown { device, port, link_layer, .. } => match link_layer.as_str() {
                "InfiniBand" => format!("ibstat {device} {port}; a subnet manager must run on the fabric"),
                _ => format!("rdma link show {device}/{port}; ip link set INTERFACE up"),
            },
            Self::LocalhostUnknown => "echo '127.0.0.1 localhost' >> /etc/hosts".into(),
            Self::MemlockLow { .. } => {
                "ulimit -l unlimited (to keep it: a line `* - memlock unlimited` in /etc/security/limits.d/rdma.conf)".into()
            }
            Self::ModuleMissing { name, state } => match state {
                ModuleState::Available => format!("modprobe {name}"),
                _ => format!("install a kernel that has it (Debian: apt-get install linux-image-amd64), then modprobe {name}"),
            },
            Self::NameServerMissing => "use addresses, or name a server in /etc/resolv.conf".into(),
            Self::NodeMissing { .. } => "modprobe rdma_ucm".into(),
            Self::NodeUnusable { path, .. } => format!("chmod a+rw {path} (to keep it: a rule of udev; rdma-core has one)"),
            Self::PortHeld { holder: Holder::Process { pid, .. }, .. } => format!("kill {pid}"),
            Self::PortHeld { address, .. } => format!("as root: ss -ulpn 'sport = :{}'", address.port()),
            Self::PortHeldByKernel { device, .. } => match device {
                Some(device) => format!(
                    "export PORTOLAN_PROVIDER=kernel (or do without it: rdma link delete {device}; modprobe -r rdma_rxe)"
                ),
                None => "modprobe -r rdma_rxe".into(),
            },
            Self::ProviderUnknown { .. } => "unset PORTOLAN_PROVIDER".into(),
            Self::RdmaCmUnusable { .. } => "modprobe rdma_ucm; ls -l /dev/infiniband".into(),
            Self::ReversePathFilter { interface } => {
                format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", interface.replace('.', "/"))
            }
            Self::SmallMtu { interface, .. } => {
                format!("ip link set {interface} mtu 4200 (all hosts and switches of the network must have it)")
            }
            Self::SoftwareHasNoDevice => "ip link set lo up; ip address show".into(),
            Self::Translation { .. } => "exempt UDP port 4791 from it, or connect by addresses that are not translated".into(),
            Self::VerbsDriversMissing => "apt-get install ibverbs-providers".into(),
            Self::VerbsUnusable { .. } => "apt-get install libibverbs1 ibverbs-providers".into(),
        })
    }
}

/// A rule that accepts RoCEv2 before all others, in the syntax of the tool that listed the chain.
fn accept_rule(hook: Hook, tool: &str, chain: &str) -> String {
    if tool == "nft" {
        // `inet filter/input` is `inet filter input` to nft.
        let chain = chain.replacen('/', " ", 1);
        return format!("nft insert rule {chain} udp dport 4791 accept");
    }
    let program = tool.trim_end_matches("-save");
    let chain = match hook {
        Hook::Output => "OUTPUT",
        _ => "INPUT",
    };
    format!("{program} -I {chain} -p udp --dport 4791 -j ACCEPT")
}

/// An address, with its port if it has one.
pub(super) fn address_text(address: SocketAddr) -> String {
    match (address, address.port()) {
        (SocketAddr::V6(v6), 0) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        (address, 0) => address.ip().to_string(),
        (address, _) => address.to_string(),
    }
}
