//! Facts about a machine, as plain data: gathered in one place, judged in another.

use std::net::{IpAddr, SocketAddr};

use portolan::provider::{Choice, Offers, PROVIDER_ENV, PinnedBy};
use portolan::software::DevicePreview;

use super::rules::Ruleset;

/// Facts about this machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The provider that this environment selects, or the error in the environment.
    pub(super) provider: Option<Result<Choice, String>>,
    /// What pins the provider; if nothing does, the route decides.
    pub(super) pinned_by: Option<PinnedBy>,
    pub(super) host: Host,
    pub(super) kernel: Kernel,
    /// The devices that the software provider would have.
    pub(super) software: Vec<DevicePreview>,
    pub(super) port: UdpPort,
    pub(super) local: LocalMemory,
    pub(super) network: Network,
    pub(super) rules: Ruleset,
    pub(super) names: Names,
    pub(super) destination: Option<Destination>,
    /// Facts that could not be determined, and why.
    pub(super) unseen: Vec<Unseen>,
}

impl Facts {
    /// Whether the software device serves this environment, or those routes that no kernel device serves.
    pub(super) fn is_software(&self) -> bool {
        matches!(self.provider, Some(Ok(Choice::Software)))
    }

    /// Whether each route selects its provider.
    pub(super) fn is_by_route(&self) -> bool {
        self.is_software() && self.pinned_by.is_none()
    }

    /// What pins the provider, as the user wrote it.
    pub(super) fn pin_name(&self) -> &'static str {
        match self.pinned_by {
            Some(PinnedBy::Program) => "--provider",
            _ => PROVIDER_ENV,
        }
    }

    /// Whether the first usable route to the destination uses a software device.
    pub(super) fn goes_by_software(&self) -> bool {
        let ways = self
            .destination
            .as_ref()
            .and_then(|destination| destination.ways.as_ref().ok());
        let mut usable = ways.into_iter().flatten().filter(|way| way.fault.is_none());
        let device = usable.next().and_then(|way| way.device.as_ref());
        device.is_some_and(|(name, _)| self.software.iter().any(|device| device.name == *name))
    }

    /// Whether the kernel's devices serve this environment.
    pub(super) fn is_kernel(&self) -> bool {
        matches!(self.provider, Some(Ok(Choice::Kernel)))
    }
}

/// What keeps processes of this host from using memory instead of sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalMemory {
    /// Whether `PORTOLAN_LOCAL` turns memory off, or why its value is invalid.
    pub(super) is_off: Option<Result<bool, String>>,
    /// `kernel.yama.ptrace_scope`; `None` if the kernel has no Yama.
    pub(super) ptrace_scope: Option<u8>,
    /// Whether a seccomp filter refuses process_vm_readv(2) or process_vm_writev(2).
    pub(super) calls_refused: bool,
    /// Processes that share the port and belong to other users.
    pub(super) other_users: Vec<u32>,
    /// Number of processes that share the port in other process namespaces.
    pub(super) other_namespaces: usize,
}

/// A fact that is not visible to this user, or to any process in this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unseen {
    pub(super) what: String,
    pub(super) why: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) name: String,
    /// The running kernel, `uname -r`.
    pub(super) release: String,
    pub(super) is_root: bool,
    /// The kind of container, if this is one.
    pub(super) container: Option<String>,
    pub(super) memlock: Memlock,
}

/// How much memory this process may lock. The kernel's devices lock all memory that they use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memlock {
    /// Bytes; `None` means unlimited.
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
    /// Whether the limit does not apply to this process (CAP_IPC_LOCK).
    pub(super) is_exempt: bool,
}

/// The kernel's RDMA support.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel {
    pub(super) modules: Vec<Module>,
    /// Number of the rdma_cm device's ABI.
    pub(super) rdma_cm_abi: Option<u32>,
    /// Number of the verbs' ABI.
    pub(super) verbs_abi: Option<u32>,
    /// Optional features of the rdma_cm device, or why it cannot be probed.
    pub(super) offers: Option<Result<Offers, String>>,
    /// The files in `/dev/infiniband`.
    pub(super) nodes: Vec<Node>,
    /// Path of the machine's libibverbs, or why it cannot be used.
    pub(super) library: Option<Result<String, String>>,
    /// Names of its drivers that are installed.
    pub(super) drivers: Vec<String>,
    pub(super) devices: Vec<KernelDevice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) state: ModuleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModuleState {
    Loaded,
    BuiltIn,
    /// Installed for the running kernel, but not loaded.
    Available,
    /// It does not exist.
    Absent,
}

impl ModuleState {
    pub(super) fn is_there(self) -> bool {
        matches!(self, Self::Loaded | Self::BuiltIn)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::BuiltIn => "built in",
            Self::Available => "available",
            Self::Absent => "absent",
        }
    }
}

/// A device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: String,
    /// Permission bits.
    pub(super) mode: u32,
    /// Whether this user may read and write it.
    pub(super) is_usable: bool,
}

/// An RDMA device of the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelDevice {
    pub(super) name: String,
    pub(super) node_guid: String,
    pub(super) firmware: Option<String>,
    /// The hardware's driver; `None` for the kernel's own software devices.
    pub(super) driver: Option<String>,
    pub(super) ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: u32,
    /// `ACTIVE`, `DOWN` and so on.
    pub(super) state: String,
    /// `Ethernet` or `InfiniBand`.
    pub(super) link_layer: String,
    pub(super) rate: String,
    /// The nonzero GIDs.
    pub(super) gids: Vec<PortGid>,
}

impl Port {
    pub(super) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    pub(super) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortGid {
    pub(super) index: u32,
    pub(super) gid: String,
    /// `RoCE v2`, `IB/RoCE v1`, `iWARP`.
    pub(super) kind: Option<String>,
    /// Its network interface.
    pub(super) interface: Option<String>,
}

/// The users of UDP port 4791.
#[derive(Clone, Debug, Default)]
pub(super) struct UdpPort {
    pub(super) number: u16,
    /// Why `PORTOLAN_TRUST` is invalid, so that programs do not get the port.
    pub(super) trust_error: Option<String>,
    /// The processes that share it by Portolan's rules, or why that is unknown.
    pub(super) group: Option<Result<PortGroup, String>>,
    /// Sockets on it, in this network namespace.
    pub(super) sockets: Vec<UdpSocket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortGroup {
    pub(super) holder_pid: u32,
    pub(super) pids: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UdpSocket {
    pub(super) address: SocketAddr,
    pub(super) uid: u32,
    pub(super) owner: Owner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Process {
        pid: u32,
        program: String,
    },
    /// No process has it: it belongs to the kernel.
    Kernel,
    /// Unknown, because not every process is visible.
    Unknown,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    pub(super) interfaces: Vec<Interface>,
    /// The loopback interface, if it is down; then it may have no address and no device.
    pub(super) loopback_down: Option<String>,
    /// Whether the kernel has IPv6.
    pub(super) has_ipv6: bool,
    /// Number of tracked connections, and the limit.
    pub(super) conntrack: Option<(u64, u64)>,
}

/// Settings of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ipv6_disabled: bool,
    /// The effective reverse path filter: the larger of `all` and its own.
    pub(super) rp_filter: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// Lines of `/etc/hosts`.
    pub(super) hosts: Vec<(IpAddr, Vec<String>)>,
    pub(super) name_servers: Vec<IpAddr>,
    /// Whether nsswitch queries name servers for hosts.
    pub(super) asks_dns: bool,
}

impl Names {
    /// The addresses that `/etc/hosts` has for a name.
    pub(super) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        let has =
            move |names: &[String]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let lines = self.hosts.iter().filter(move |(_, names)| has(names));
        lines.map(|(address, _)| *address)
    }
}

/// The destination that the user asked about.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) text: String,
    /// The routes to it in the order to try them, or why there is none.
    pub(super) ways: Result<Vec<Way>, String>,
}

/// A route to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) address: SocketAddr,
    pub(super) source: Option<SocketAddr>,
    /// The RDMA device of the source, and its GID's index.
    pub(super) device: Option<(String, u32)>,
    /// The network interface that packets leave by.
    pub(super) interface_index: Option<u32>,
    /// Why it is unusable, if so.
    pub(super) fault: Option<WayFault>,
    /// The reasons for this route, one sentence each.
    pub(super) reasons: Vec<String>,
}

/// Why a route is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WayFault {
    NoRoute(String),
    /// No RDMA device has the source that routing chose.
    NoDevice(IpAddr),
    /// The destination is an address of this host that no software device has.
    NotOfADevice,
}
