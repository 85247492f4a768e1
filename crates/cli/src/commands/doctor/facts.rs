//! What is known of a machine. Plain data: gathered in one place, judged in another.

use std::net::{IpAddr, SocketAddr};

use portolan::provider::{Choice, Offers};
use portolan::software::DevicePreview;

use super::rules::Ruleset;

/// What is known of this machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The provider that this environment selects, or the error in the environment.
    pub(super) provider: Option<Result<Choice, String>>,
    /// The environment names the provider; else the route of each way does.
    pub(super) is_pinned: bool,
    pub(super) host: Host,
    pub(super) kernel: Kernel,
    /// The devices that the software provider would have.
    pub(super) software: Vec<DevicePreview>,
    pub(super) port: UdpPort,
    pub(super) network: Network,
    pub(super) rules: Ruleset,
    pub(super) names: Names,
    pub(super) destination: Option<Destination>,
    /// What could not be seen, and why.
    pub(super) unseen: Vec<Unseen>,
}

impl Facts {
    /// Whether the software device serves this environment, or those ways that no device of the kernel's
    /// serves.
    pub(super) fn is_software(&self) -> bool {
        matches!(self.provider, Some(Ok(Choice::Software)))
    }

    /// Whether each way has the provider of its route.
    pub(super) fn is_by_route(&self) -> bool {
        self.is_software() && !self.is_pinned
    }

    /// Whether the first way to the destination that can be taken is a software device's.
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

/// Something that this user, or any process in this namespace, cannot see.
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
    /// The kind of container this is, if it is one.
    pub(super) container: Option<String>,
    pub(super) memlock: Memlock,
}

/// How much memory this process may lock: the kernel's devices need that of what they use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memlock {
    /// Bytes; `None` is without limit.
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
    /// The limit does not hold for this process (CAP_IPC_LOCK).
    pub(super) is_exempt: bool,
}

/// What the kernel has of RDMA.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel {
    pub(super) modules: Vec<Module>,
    /// Number of the rdma_cm device's ABI.
    pub(super) rdma_cm_abi: Option<u32>,
    /// Number of the verbs' ABI.
    pub(super) verbs_abi: Option<u32>,
    /// What the rdma_cm device knows of newer commands, or why it cannot be asked.
    pub(super) offers: Option<Result<Offers, String>>,
    /// The files in `/dev/infiniband`.
    pub(super) nodes: Vec<Node>,
    /// Where the machine's libibverbs was found, or why it cannot be used.
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
    /// It lies beside the running kernel, and can be loaded.
    Available,
    /// It does not.
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

/// A file of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: String,
    /// Permission bits.
    pub(super) mode: u32,
    /// This user may read and write it.
    pub(super) is_usable: bool,
}

/// An RDMA device of the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelDevice {
    pub(super) name: String,
    pub(super) node_guid: String,
    pub(super) firmware: Option<String>,
    /// The driver of the hardware behind it; `None` for the kernel's own soft devices.
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
    /// Those that are not zero.
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

/// Who has UDP port 4791.
#[derive(Clone, Debug, Default)]
pub(super) struct UdpPort {
    pub(super) number: u16,
    /// The processes that share it by Portolan's rules; or why they do not tell.
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
    /// No process has it: it is the kernel's own.
    Kernel,
    /// Not every process could be looked at.
    Unknown,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    pub(super) interfaces: Vec<Interface>,
    /// The loopback interface, if it is down; it may have no address then, and so no device.
    pub(super) loopback_down: Option<String>,
    /// IPv6 is there at all.
    pub(super) has_ipv6: bool,
    /// Connections that the kernel follows, and how many it can.
    pub(super) conntrack: Option<(u64, u64)>,
}

/// Settings of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) ipv6_disabled: bool,
    /// The reverse path filter that holds: the larger of `all` and its own.
    pub(super) rp_filter: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// Lines of `/etc/hosts`.
    pub(super) hosts: Vec<(IpAddr, Vec<String>)>,
    pub(super) name_servers: Vec<IpAddr>,
    /// nsswitch asks name servers for hosts.
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

/// Where the caller wants to go.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) text: String,
    /// The ways to it in the order to try them, or why there is none.
    pub(super) ways: Result<Vec<Way>, String>,
}

/// A way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) address: SocketAddr,
    pub(super) source: Option<SocketAddr>,
    /// The RDMA device of the source, and its GID's index.
    pub(super) device: Option<(String, u32)>,
    /// The network interface that packets leave by.
    pub(super) interface_index: Option<u32>,
    /// Why it cannot be used.
    pub(super) fault: Option<WayFault>,
    /// Why it is so, sentence by sentence.
    pub(super) reasons: Vec<String>,
}

/// Why a way cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WayFault {
    NoRoute(String),
    /// No RDMA device has the source that routing chose.
    NoDevice(IpAddr),
}
