//! Devices, ports and their asynchronous events.

use alloc::borrow::Cow;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use portolan_wire::addr::{Gid, PKey, Qpn};

use super::Mtu;

/// Identifies one opening of a device in this process. A device that was removed and added again, or closed and opened
/// again, is another instance. All handles of one opening return the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance(usize);

impl Instance {
    /// Creates a value that no other device of the process has.
    #[must_use]
    pub fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for Instance {
    fn default() -> Self {
        Self::new()
    }
}

/// Limits and identity of a device (`struct ibv_device_attr`, the fields in use).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Node GUID, host order.
    pub node_guid: u64,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests per queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter/gather elements per work request.
    pub max_sge: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of completions per queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum size of a memory region, in bytes.
    pub max_mr_size: u64,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of multicast groups.
    pub max_mcast_grp: u32,
    /// Maximum number of queue pairs per multicast group.
    pub max_mcast_qp_attach: u32,
    /// Scope of the atomicity of atomics.
    pub atomic_cap: AtomicCap,
    /// Maximum number of outstanding reads and atomics per queue pair as responder.
    pub max_qp_rd_atom: u8,
    /// Maximum number of outstanding reads and atomics per queue pair as initiator.
    pub max_qp_init_rd_atom: u8,
    /// Maximum inline data per send, in bytes.
    pub max_inline_data: u32,
    /// Number of ports.
    pub phys_port_cnt: u8,
    /// Local ACK delay exponent.
    pub local_ca_ack_delay: u8,
}

/// Scope of the atomicity of a device's atomics (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AtomicCap {
    /// Atomics are not supported.
    None = 0,
    /// Atomic with respect to other queue pairs of the same device.
    Hca = 1,
    /// Atomic with respect to all queue pairs of the machine and its processors' atomic
    /// instructions.
    Global = 2,
}

/// State of a port (`struct ibv_port_attr`, the fields in use).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Whether the port is ACTIVE.
    pub active: bool,
    /// Largest MTU.
    pub max_mtu: Mtu,
    /// MTU in use.
    pub active_mtu: Mtu,
    /// Size of the GID table.
    pub gid_tbl_len: u32,
    /// Size of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// LID that the subnet manager assigned; 0 without one, and on Ethernet.
    pub lid: u16,
}

/// The link layer of a port (`IBV_LINK_LAYER_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// Ethernet: RoCE, routed by IP.
    Ethernet,
    /// InfiniBand: paths come from the subnet administrator.
    InfiniBand,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An entry of a port's GID table (`struct ibv_gid_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// GID.
    pub gid: Gid,
    /// Index; it does not change during the device's lifetime.
    pub index: u32,
    /// Port.
    pub port_num: u8,
    /// Linux interface index of its network device.
    pub interface_index: u32,
}

/// The P_Key table of a RoCE port has one entry.
pub const ROCE_PKEY: PKey = PKey::DEFAULT;

/// Number of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Srqn(pub u32);

impl Srqn {
    /// The highest number that fits into the 24 bits of the packet field.
    pub const WIRE_MAX: u32 = 0xFF_FFFF;
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SRQ {}", self.0)
    }
}

/// Number of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cqn(pub u32);

impl fmt::Display for Cqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CQ {}", self.0)
    }
}

/// An event of a queue pair or device that is not a completion (`struct ibv_async_event`,
/// ibv_get_async_event(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The queue pair entered the error state.
    QpFatal(Qpn),
    /// A request of the peer was invalid.
    QpReqErr(Qpn),
    /// The peer requested memory without the necessary rights.
    QpAccessErr(Qpn),
    /// Data arrived on a queue pair in RTR, before the connection was established.
    CommEst(Qpn),
    /// The send queue is drained: none of its work is outstanding.
    SqDrained(Qpn),
    /// The queue pair is in error and took its last receive from its shared receive queue.
    QpLastWqeReached(Qpn),
    /// The shared receive queue holds fewer work requests than its limit.
    SrqLimitReached(Srqn),
    /// A completion queue overflowed.
    CqErr(Cqn),
    /// A port became active.
    PortActive(u8),
    /// A port became inactive.
    PortErr(u8),
    /// The GID table of a port changed.
    GidChange(u8),
    /// The device was removed.
    DeviceFatal,
}

/// A counter of a device or queue pair (a file of `hw_counters` in sysfs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name, such as `rx_packets`.
    pub name: Cow<'static, str>,
    /// Value since creation.
    pub value: u64,
}
