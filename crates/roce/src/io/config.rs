//! Settings of the stack and their limits.

use std::sync::Arc;

use portolan_provider::{Error, Result, Step};

use crate::engine::{FlowConfig, QpLimits};
use crate::io::net::tap::Tap;
use portolan_port_sharing::GroupConfig;

/// Settings of this process's software devices.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// UDP port, receive buffer, and which other processes may share the port.
    pub group: GroupConfig,
    /// Limits on the number of objects.
    pub limits: Limits,
    /// Limits of a queue pair. `max_path_mtu` is ignored: the device has its own.
    pub qp_limits: QpLimits,
    /// Flow control of queue pairs.
    pub flow: FlowConfig,
    /// Sockets to send from, per IP version: 1 to 64. Queue pairs are spread over them.
    pub send_sockets: usize,
    /// Requested send buffer of each socket, bytes. Without CAP_NET_ADMIN the kernel gives at most
    /// `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
    /// Whether packets to other processes of this host go through memory, if both processes trust each other.
    pub local_memory: bool,
    /// A tap that sees every packet from the first on.
    pub tap: Option<Arc<dyn Tap>>,
}

/// Maximum of [`StackConfig::send_sockets`].
const SEND_SOCKETS_MAX: usize = 64;

/// Limits on the objects of one process. Exceeding one is an error.
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
    /// Multicast groups. Each needs a file descriptor.
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
    /// Queued asynchronous events per device.
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
            // As on mlx5 devices. A queue allocates memory for its entries, not for its capacity.
            max_cqe: (1 << 22) - 1,
            // That of the table of queue pairs.
            max_qp: 57_344,
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
