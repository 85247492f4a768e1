//! `infiniband/verbs.h`, as far as the connection manager meets it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::layouts;

/// A function of which only the place is of interest.
type Slot = *mut c_void;

layouts! {
    /// A union in C, aligned to eight; big-endian.
    struct Gid = "union ibv_gid" { raw: [u64; 2] }
    struct Device = "struct ibv_device" {
        _ops: [Slot; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    struct Context = "struct ibv_context" {
        device: *mut Device,
        ops: [Slot; 32],
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    /// Grows at its beginning; the context at its end is what programs have.
    struct VerbsContext = "struct verbs_context" {
        open_qp: Slot,
        create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
        get_srq_num: Slot,
        create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
        open_xrcd: Slot,
        close_xrcd: Slot,
        _ABI_placeholder3: u64,
        sz: usize,
        context: Context,
    }
    struct Pd = "struct ibv_pd" { context: *mut Context, handle: u32 }
    struct CompChannel = "struct ibv_comp_channel" {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }
    struct Cq = "struct ibv_cq" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    struct Srq = "struct ibv_srq" {
        context: *mut Context,
        srq_context: *mut c_void,
        pd: *mut Pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    struct Qp = "struct ibv_qp" {
        context: *mut Context,
        qp_context: *mut c_void,
        pd: *mut Pd,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    struct QpCap = "struct ibv_qp_cap" {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct QpInitAttr = "struct ibv_qp_init_attr" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    struct RxHashConf = "struct ibv_rx_hash_conf" {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
    /// Begins as [`QpInitAttr`] does.
    struct QpInitAttrEx = "struct ibv_qp_init_attr_ex" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: *mut c_void,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: RxHashConf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
    struct SrqAttr = "struct ibv_srq_attr" { max_wr: u32, max_sge: u32, srq_limit: u32 }
    struct SrqInitAttr = "struct ibv_srq_init_attr" { srq_context: *mut c_void, attr: SrqAttr }
    struct TmCap = "struct ibv_tm_cap" { max_num_tags: u32, max_ops: u32 }
    /// Begins as [`SrqInitAttr`] does.
    struct SrqInitAttrEx = "struct ibv_srq_init_attr_ex" {
        srq_context: *mut c_void,
        attr: SrqAttr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut Pd,
        xrcd: *mut c_void,
        cq: *mut Cq,
        tm_cap: TmCap,
    }
    struct GlobalRoute = "struct ibv_global_route" {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    struct AhAttr = "struct ibv_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    struct QpAttr = "struct ibv_qp_attr" {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    struct DeviceAttr = "struct ibv_device_attr" {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    struct Ece = "struct ibv_ece" { vendor_id: u32, options: u32, comp_mask: u32 }
}

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
    pub const SQ_PSN: u32 = 1 << 16;
    /// Bits that kernels before Linux 4.x set for themselves and that no libibverbs knows.
    pub const KERNELS_OWN: u32 = 0x00E0_0000;
}

/// `IBV_QPT_RC`.
pub const QPT_RC: u32 = 2;
/// `IBV_QPT_UD`.
pub const QPT_UD: u32 = 4;
/// `IBV_QPT_XRC_RECV`.
pub const QPT_XRC_RECV: u32 = 10;
/// `IBV_QP_INIT_ATTR_PD`.
pub const QP_INIT_ATTR_PD: u32 = 1;
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
