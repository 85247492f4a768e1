//! Settings of a new queue pair.

use core::time::Duration;

use portolan_provider::verbs::{Mtu, QpInit};
use portolan_provider::{Error, Result, Step};
use portolan_wire::Qpn;

use super::PdId;

/// Identity, sizes and limits of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number, which the host chooses so that peers cannot guess it.
    pub qpn: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// Type and sizes that the owner requests.
    pub init: QpInit,
    /// Maximum values of the device.
    pub limits: QpLimits,
    /// Flow control.
    pub flow: FlowConfig,
}

impl QpConfig {
    /// Checks the owner's request against the limits; the sizes of its receive queue only if it `has_receives` of its own
    /// (Linux: `rxe_qp_chk_cap`).
    ///
    /// # Errors
    /// See [`QueuePair::new`](super::QueuePair::new).
    pub(super) fn check(&self, has_receives: bool) -> Result<()> {
        let (mut cap, limits) = (self.init.cap, &self.limits);
        if !has_receives {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        for (what, found, max) in [
            ("max_send_wr", cap.max_send_wr, limits.max_wr),
            ("max_recv_wr", cap.max_recv_wr, limits.max_wr),
            ("max_send_sge", cap.max_send_sge, limits.max_sge),
            ("max_recv_sge", cap.max_recv_sge, limits.max_sge),
            (
                "max_inline_data",
                cap.max_inline_data,
                limits.max_inline_data,
            ),
        ] {
            if found > max {
                let expected = format_args!("at most {max}");
                return Err(Error::invalid(Step::CreateQp, what, expected, found));
            }
        }
        if has_receives && cap.max_send_wr == 0 && cap.max_recv_wr == 0 {
            let (what, expected) = ("max_send_wr and max_recv_wr", "at least one nonzero");
            return Err(Error::invalid(Step::CreateQp, what, expected, "0 and 0"));
        }
        Ok(())
    }
}

/// Maximum values of a device; requesting more is an error.
#[derive(Clone, Copy, Debug)]
pub struct QpLimits {
    /// Work requests per queue.
    pub max_wr: u32,
    /// Scatter/gather elements per work request.
    pub max_sge: u32,
    /// Inline bytes per send.
    pub max_inline_data: u32,
    /// Outstanding reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// The port's MTU: maximum for path MTUs and datagrams.
    pub max_path_mtu: Mtu,
}

impl Default for QpLimits {
    fn default() -> Self {
        Self {
            max_wr: 1 << 14,
            max_sge: 32,
            max_inline_data: 512,
            // As in Linux's rdma_rxe (RXE_MAX_QP_INIT_RD_ATOM, RXE_MAX_QP_RD_ATOM). perftest sets each end's queue pair
            // to the limit of the other end's device.
            max_rd_atomic: 128,
            max_dest_rd_atomic: 128,
            max_path_mtu: Mtu::Mtu4096,
        }
    }
}

/// Flow control and retransmission of the requester.
///
/// RoCE on an ordinary network has no flow control: packets that do not fit into the peer's socket buffer are lost. So
/// the requester keeps a window over its requests and the read responses it requests. The window is in bytes, and each
/// packet counts as a full path MTU.
#[derive(Clone, Copy, Debug)]
pub struct FlowConfig {
    /// Window of a new connection, in bytes; less than the default socket buffer of a receiver.
    pub window_initial_bytes: u32,
    /// Minimum window; one packet is always allowed.
    pub window_min_bytes: u32,
    /// Maximum window: about the receive buffer of an unprivileged process, and far more than a local network's
    /// bandwidth-delay product.
    pub window_max_bytes: u32,
    /// Maximum bytes of one read request. An RDMA read is split into requests of at most this size and at most the
    /// window's room.
    pub read_request_bytes_max: u32,
    /// The responder acknowledges at least every this many bytes, each packet counted as a full path MTU, even without a
    /// request. The requester requests an acknowledgement at least as often. Each one wakes a thread of the requester. At
    /// most half of the maximum window, so that sending goes on meanwhile.
    pub ack_interval_bytes: u32,
    /// Wait for an acknowledgement before the round trip is measured. The queue pair's local ACK timeout is the upper
    /// bound.
    pub retransmit_initial: Duration,
    /// Shortest wait for an acknowledgement.
    pub retransmit_min: Duration,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            window_initial_bytes: 64 << 10,
            window_min_bytes: 8 << 10,
            window_max_bytes: 256 << 10,
            read_request_bytes_max: 256 << 10,
            ack_interval_bytes: 128 << 10,
            retransmit_initial: Duration::from_millis(100),
            retransmit_min: Duration::from_millis(10),
        }
    }
}
