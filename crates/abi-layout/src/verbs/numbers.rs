//! Named constants of the header.

use std::ffi::c_int;

/// Numbers of `enum ibv_qp_state`.
pub mod qp_state {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const SQD: u32 = 4;
    pub const ERR: u32 = 6;
}

/// Bits of `enum ibv_qp_attr_mask`.
pub mod qp_attr_mask {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const RATE_LIMIT: u32 = 1 << 25;
    /// Bits that kernels before Linux 4.x set for internal use and that no libibverbs defines.
    pub const KERNELS_OWN: u32 = 0x00E0_0000;
}

/// Bits of `enum ibv_access_flags`.
pub mod access {
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    /// Rights that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3FF0_0000;
}

/// Bits of `enum ibv_rereg_mr_flags`.
pub mod rereg_mr {
    pub const CHANGE_TRANSLATION: u32 = 1;
    pub const CHANGE_PD: u32 = 1 << 1;
    pub const CHANGE_ACCESS: u32 = 1 << 2;
    /// `IBV_REREG_MR_FLAGS_SUPPORTED`.
    pub const ALL: u32 = 7;
}

/// Numbers of `enum ibv_wr_opcode`.
pub mod wr_opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
}

/// `IBV_SEND_INLINE`.
pub const SEND_INLINE: u32 = 1 << 3;

/// Bits of `enum ibv_wc_flags`.
pub mod wc_flags {
    pub const GRH: u32 = 1;
    pub const WITH_IMM: u32 = 1 << 1;
    pub const WITH_INV: u32 = 1 << 3;
}

/// Bits of `enum ibv_create_cq_wc_flags`: fields of a completion that a program wants to read.
pub mod create_cq_wc_flags {
    /// `IBV_WC_STANDARD_FLAGS`.
    pub const STANDARD: u64 = 0x7F;
    pub const COMPLETION_TIMESTAMP: u64 = 1 << 7;
    pub const COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
pub const VALUES_MASK_RAW_CLOCK: u32 = 1;
/// `IBV_QPT_RC`.
pub const QPT_RC: u32 = 2;
/// `IBV_QPT_UD`.
pub const QPT_UD: u32 = 4;
/// `IBV_QPT_XRC_SEND`.
pub const QPT_XRC_SEND: u32 = 9;
/// `IBV_QPT_XRC_RECV`.
pub const QPT_XRC_RECV: u32 = 10;
/// `IBV_QP_INIT_ATTR_PD`.
pub const QP_INIT_ATTR_PD: u32 = 1;
/// `IBV_QP_INIT_ATTR_XRCD`.
pub const QP_INIT_ATTR_XRCD: u32 = 2;
/// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD` and `_TYPE`: together they identify the queue pair.
pub const QP_OPEN_ATTR_NAME: u32 = 0xB;
/// `IBV_QP_OPEN_ATTR_CONTEXT`.
pub const QP_OPEN_ATTR_CONTEXT: u32 = 4;
/// `IBV_XRCD_INIT_ATTR_FD`.
pub const XRCD_INIT_ATTR_FD: u32 = 1;
/// `IBV_XRCD_INIT_ATTR_OFLAGS`.
pub const XRCD_INIT_ATTR_OFLAGS: u32 = 2;
/// `IBV_SRQ_INIT_ATTR_TYPE`.
pub const SRQ_INIT_ATTR_TYPE: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_PD`.
pub const SRQ_INIT_ATTR_PD: u32 = 2;
/// `IBV_SRQ_INIT_ATTR_XRCD`.
pub const SRQ_INIT_ATTR_XRCD: u32 = 4;
/// `IBV_SRQ_INIT_ATTR_CQ`.
pub const SRQ_INIT_ATTR_CQ: u32 = 8;
/// `IBV_SRQT_BASIC`.
pub const SRQT_BASIC: u32 = 0;
/// `IBV_SRQT_XRC`.
pub const SRQT_XRC: u32 = 1;
/// `IBV_TRANSPORT_IB`.
pub const TRANSPORT_IB: c_int = 0;
/// `IBV_TRANSPORT_IWARP`.
pub const TRANSPORT_IWARP: c_int = 1;
/// `__VERBS_ABI_IS_EXTENDED`.
pub const ABI_IS_EXTENDED: usize = usize::MAX;

/// Numbers of `enum ibv_event_type`.
pub mod async_event_type {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    pub const GID_CHANGE: u32 = 18;
}

/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: u32 = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
pub const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
pub const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_GID_TYPE_IB`: InfiniBand and iWARP.
pub const GID_TYPE_IB: u32 = 0;
/// `IBV_GID_TYPE_ROCE_V2`.
pub const GID_TYPE_ROCE_V2: u32 = 2;
/// `IBV_SRQ_MAX_WR`.
pub const SRQ_MAX_WR: u32 = 1;
/// `IBV_SRQ_LIMIT`.
pub const SRQ_LIMIT: u32 = 1 << 1;
