//! Settings of the stack, each with its bound.

use std::sync::Arc;

use portolan_provider::{Error, Result, Step};

use crate::engine::{FlowConfig, QpLimits};
use crate::io::net::tap::Tap;
use portolan_port_sharing::GroupConfig;

/// How the software devices of this process work.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// UDP port, receive buffer, and who else may share the port.
    pub group: GroupConfig,
    /// How many objects there may be.
    pub limits: Limits,
    /// Sizes of a queue pair. `max_path_mtu` is that of the device instead.
    pub qp_limits: QpLimits,
    /// Flow control of queue pairs.
    pub flow: FlowConfig,
    /// Sockets to send from, per IP version: 1 to 64. Queue pairs are spread
    /// over them.
    pub send_sockets: usize,
    /// Requested send buffer of each, bytes. Without CAP_NET_ADMIN the kernel gives at most
    /// than `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
    /// Whether packets to other processes of this host go through memory, where both trust each other.
    pub local_memory: bool,
    /// A capture, from the first packet.
    pub tap: Option<Arc<dyn Tap>>,
}

/// Bound of [`StackConfig::send_sockets`].
const SEND_SOCKETS_MAX: usize = 64;

/// How many objects there may be in one process; each is an error to exceed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Protection domains.
    pub max_pd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions per completion queue.
    pub max_cqe: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups; each takes a descriptor.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to a multicast group.
    pub max_mcast_qp_attach: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes per memory region.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// Asynchronous events that wait to be taken, per device.
    pub max_async_events: usize,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            group: GroupConfig::default(),
            limits: Limits::default(),
            qp_limits: QpLimits::default(),
            flow: FlowConfig::default(),
            send_sockets: 4,
            send_buffer_bytes: 4 << 20,
            local_memory: true,
            tap: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pd: 1 << 15,
            max_cq: 1 << 15,
            // As mlx5 devices have it. A queue takes memory for its entries, not for its capacity.
            max_cqe: (1 << 22) - 1,
            max_qp: 1 << 15,
            max_ah: 1 << 16,
            max_mcast_grp: 256,
            max_mcast_qp_attach: 64,
            max_mr: 1 << 19,
            max_mr_size: 1 << 47,
            max_mw: 1 << 16,
            max_srq: 1 << 15,
            max_srq_wr: 1 << 15,
            max_async_events: 1 << 12,
        }
    }
}

impl StackConfig {
    /// Refuses settings that cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=SEND_SOCKETS_MAX).contains(&self.send_sockets) {
            let expected = format!("1 to {SEND_SOCKETS_MAX}");
            return Err(Error::invalid(
                Step::OpenDevice,
                "sockets to send from",
                expected,
                self.send_sockets,
            ));
        }
        Ok(())
    }
}
