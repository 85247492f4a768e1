//! Devices, ports and what befalls them.

use alloc::borrow::Cow;
use core::fmt;

use portolan_wire::addr::{Gid, PKey, Qpn};

use super::Mtu;

/// Limits and identity of a device (`struct ibv_device_attr`, the fields in use).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Node GUID, host order.
    pub node_guid: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests per queue.
    pub max_qp_wr: u32,
    /// Pieces of memory per work request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions per queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes per memory region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs per multicast group.
    pub max_mcast_qp_attach: u32,
    /// Towards whom atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// Reads and atomics under way per queue pair as responder.
    pub max_qp_rd_atom: u8,
    /// Reads and atomics under way per queue pair as initiator.
    pub max_qp_init_rd_atom: u8,
    /// Inline bytes per send.
    pub max_inline_data: u32,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Local ACK delay exponent.
    pub local_ca_ack_delay: u8,
}

/// Towards whom a device's atomics are atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AtomicCap {
    /// There are no atomics.
    None = 0,
    /// Towards other queue pairs of the same device.
    Hca = 1,
    /// Towards all queue pairs of the machine, and the atomic instructions of its processors.
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
    /// Slots of the GID table.
    pub gid_tbl_len: u32,
    /// Slots of the P_Key table.
    pub pkey_tbl_len: u16,
    /// What it is linked by.
    pub link_layer: LinkLayer,
}

/// What a port is linked by (`IBV_LINK_LAYER_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// Ethernet: RoCE, which finds its way by IP.
    Ethernet,
    /// InfiniBand: paths come from the subnet administrator.
    InfiniBand,
}

/// An entry of a port's GID table (`struct ibv_gid_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// GID.
    pub gid: Gid,
    /// Slot; never renumbered while the device lives.
    pub index: u32,
    /// Port.
    pub port_num: u8,
    /// Linux interface index of the network device behind it.
    pub interface_index: u32,
}

/// The P_Key table of a RoCE port has one entry.
pub const ROCE_PKEY: PKey = PKey::DEFAULT;

/// Number of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Srqn(pub u32);

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

/// Something that happened to a queue pair or device outside of work requests
/// (`struct ibv_async_event`, ibv_get_async_event(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The queue pair fell into error.
    QpFatal(Qpn),
    /// A request of the peer was invalid.
    QpReqErr(Qpn),
    /// A request of the peer had no right to the memory.
    QpAccessErr(Qpn),
    /// Data arrived before the connection was established by hand.
    CommEst(Qpn),
    /// The send queue is drained: nothing of it is under way any more.
    SqDrained(Qpn),
    /// The queue pair in error took its last receive from its shared receive queue.
    QpLastWqeReached(Qpn),
    /// The shared receive queue holds fewer work requests than its limit.
    SrqLimitReached(Srqn),
    /// A completion queue overflowed.
    CqErr(Cqn),
    /// A port became active.
    PortActive(u8),
    /// A port is active no more.
    PortErr(u8),
    /// The GID table of a port changed.
    GidChange(u8),
    /// The device is gone.
    DeviceFatal,
}

/// A count that a device or queue pair keeps (a file of `hw_counters` in sysfs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name, such as `rx_packets`.
    pub name: Cow<'static, str>,
    /// Value since the beginning.
    pub value: u64,
}
