//! The structures of libibverbs, `infiniband/verbs.h`, for machines of 64 bits: whole those that are
//! handed over, and of those that the library allocates the fields up to the last that is read.

use std::ffi::{c_int, c_uint, c_void};

const _: () = assert!(size_of::<usize>() == 8, "cookies and pointers have 64 bits");

/// `struct ibv_device`, never looked into.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Device(c_int);

/// `struct ibv_pd`, never looked into.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Pd(c_int);

/// `struct ibv_ah`, never looked into.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Ah(c_int);

/// `struct ibv_context`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Context {
    device: *mut Device,
    pub(super) ops: Ops,
    cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// `struct ibv_context_ops`: the verbs that the header calls without the library in between.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Ops {
    _compat: [*const c_void; 7],
    pub(super) alloc_mw: unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw,
    pub(super) bind_mw: unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int,
    pub(super) dealloc_mw: unsafe extern "C" fn(*mut Mw) -> c_int,
    _create_cq: *const c_void,
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _cq_event_to_destroy_srq: [*const c_void; 7],
    pub(super) post_srq_recv:
        unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _create_qp_to_destroy_qp: [*const c_void; 4],
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _create_ah_to_async_event: [*const c_void; 5],
}

/// `struct ibv_cq`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
    channel: *mut CompChannel,
    cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
}

/// `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) context: *mut Context,
    srq_context: *mut c_void,
    pd: *mut Pd,
    pub(super) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Mw {
    pub(super) context: *mut Context,
    pd: *mut Pd,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CompChannel {
    context: *mut Context,
    pub(super) fd: c_int,
}

/// `struct ibv_device_attr`. `node_guid` is big-endian.
#[repr(C)]
#[derive(Debug)]
pub(super) struct DeviceAttr {
    fw_ver: [u8; 64],
    pub(super) node_guid: u64,
    sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    page_size_cap: u64,
    vendor: [u32; 3],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_uint,
    max_ee: c_int,
    max_rdd: c_int,
    pub(super) max_mw: c_int,
    max_raw: [c_int; 2],
    pub(super) max_mcast_grp: c_int,
    pub(super) max_mcast_qp_attach: c_int,
    max_total_mcast_qp_attach: c_int,
    pub(super) max_ah: c_int,
    max_fmr: c_int,
    max_map_per_fmr: c_int,
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    max_srq_sge: c_int,
    max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    counters: [u32; 4],
    pub(super) pkey_tbl_len: u16,
    lids: [u16; 2],
    lanes: [u8; 8],
    pub(super) link_layer: u8,
    rest: [u8; 5],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct GidEntry {
    pub(super) gid: [u64; 2],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `IBV_GID_TYPE_ROCE_V2`.
pub(super) const GID_TYPE_ROCE_V2: u32 = 2;
/// `IBV_LINK_LAYER_ETHERNET`.
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_PORT_ACTIVE`.
pub(super) const PORT_ACTIVE: c_uint = 4;

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// Immediate data in network byte order, or the key to invalidate.
    pub(super) imm_data: u32,
    pub(super) wr: Wr,
    pub(super) remote_srqn: u64,
    pub(super) bind_mw: BindMw,
}

/// The union `wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Wr {
    pub(super) rdma: Rdma,
    pub(super) atomic: Atomic,
    pub(super) ud: Ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Ud {
    pub(super) ah: *mut Ah,
    pub(super) remote_qpn: u32,
    pub(super) remote_qkey: u32,
}

/// The member `bind_mw` of the last union, which is the longer one.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BindMw {
    pub(super) mw: *mut Mw,
    pub(super) rkey: u32,
    pub(super) bind_info: MwBindInfo,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MwBindInfo {
    pub(super) mr: *mut Mr,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) mw_access_flags: c_uint,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct MwBind {
    pub(super) wr_id: u64,
    pub(super) send_flags: c_uint,
    pub(super) bind_info: MwBindInfo,
}

/// Numbers of `enum ibv_wr_opcode`.
pub(super) mod opcode {
    use std::ffi::c_uint;

    pub(crate) const RDMA_WRITE: c_uint = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: c_uint = 1;
    pub(crate) const SEND: c_uint = 2;
    pub(crate) const SEND_WITH_IMM: c_uint = 3;
    pub(crate) const RDMA_READ: c_uint = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: c_uint = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: c_uint = 6;
    pub(crate) const LOCAL_INV: c_uint = 7;
    pub(crate) const BIND_MW: c_uint = 8;
    pub(crate) const SEND_WITH_INV: c_uint = 9;
}

/// `IBV_SEND_INLINE`.
pub(super) const SEND_INLINE: c_uint = 1 << 3;

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Immediate data in network byte order, or the key that was invalidated.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) rest: [u16; 4],
}

/// `IBV_WC_GRH`.
pub(super) const WC_GRH: c_uint = 1;
/// `IBV_WC_WITH_IMM`.
pub(super) const WC_WITH_IMM: c_uint = 1 << 1;
/// `IBV_WC_WITH_INV`.
pub(super) const WC_WITH_INV: c_uint = 1 << 3;

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AhAttr {
    /// Big-endian as bytes; aligned to eight.
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SrqAttr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: SrqAttr,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: Element,
    pub(super) event_type: c_uint,
}

/// What an asynchronous event is of, as its type tells.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Element {
    pub(super) cq: *mut Cq,
    pub(super) qp: *mut Qp,
    pub(super) srq: *mut Srq,
    pub(super) port_num: c_int,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structures_are_as_long_as_the_headers() {
        let sizes = [
            ("ibv_device_attr", size_of::<DeviceAttr>(), 232),
            ("ibv_port_attr", size_of::<PortAttr>(), 52),
            ("ibv_gid_entry", size_of::<GidEntry>(), 32),
            ("ibv_wc", size_of::<Wc>(), 48),
            ("ibv_send_wr", size_of::<SendWr>(), 128),
            ("ibv_recv_wr", size_of::<RecvWr>(), 32),
            ("ibv_sge", size_of::<Sge>(), 16),
            ("ibv_qp_attr", size_of::<QpAttr>(), 144),
            ("ibv_qp_init_attr", size_of::<QpInitAttr>(), 64),
            ("ibv_ah_attr", size_of::<AhAttr>(), 32),
            ("ibv_srq_init_attr", size_of::<SrqInitAttr>(), 24),
            ("ibv_srq_attr", size_of::<SrqAttr>(), 12),
            ("ibv_mw_bind", size_of::<MwBind>(), 48),
            ("ibv_mw_bind_info", size_of::<MwBindInfo>(), 32),
            ("ibv_async_event", size_of::<AsyncEvent>(), 16),
            ("ibv_context_ops", size_of::<Ops>(), 256),
        ];
        for (name, size, expected) in sizes {
            assert_eq!(size, expected, "{name}");
        }
    }

    #[test]
    fn fields_lie_where_the_header_has_them() {
        let offsets = [
            ("context.ops", offset_of!(Context, ops), 8),
            ("context.async_fd", offset_of!(Context, async_fd), 268),
            ("ops.alloc_mw", offset_of!(Ops, alloc_mw), 56),
            ("ops.dealloc_mw", offset_of!(Ops, dealloc_mw), 72),
            ("ops.poll_cq", offset_of!(Ops, poll_cq), 88),
            ("ops.req_notify_cq", offset_of!(Ops, req_notify_cq), 96),
            ("ops.post_srq_recv", offset_of!(Ops, post_srq_recv), 160),
            ("ops.post_send", offset_of!(Ops, post_send), 200),
            ("ops.post_recv", offset_of!(Ops, post_recv), 208),
            ("cq.cqe", offset_of!(Cq, cqe), 28),
            ("qp.qp_num", offset_of!(Qp, qp_num), 52),
            ("srq.handle", offset_of!(Srq, handle), 24),
            ("mr.lkey", offset_of!(Mr, lkey), 36),
            ("mr.rkey", offset_of!(Mr, rkey), 40),
            ("mw.rkey", offset_of!(Mw, rkey), 16),
            ("comp_channel.fd", offset_of!(CompChannel, fd), 8),
            ("send_wr.imm_data", offset_of!(SendWr, imm_data), 36),
            ("send_wr.wr", offset_of!(SendWr, wr), 40),
            ("send_wr.bind_mw", offset_of!(SendWr, bind_mw), 80),
            (
                "device_attr.node_guid",
                offset_of!(DeviceAttr, node_guid),
                64,
            ),
            (
                "device_attr.max_mr_size",
                offset_of!(DeviceAttr, max_mr_size),
                80,
            ),
            ("device_attr.max_qp", offset_of!(DeviceAttr, max_qp), 108),
            (
                "device_attr.atomic_cap",
                offset_of!(DeviceAttr, atomic_cap),
                164,
            ),
            (
                "device_attr.max_srq_sge",
                offset_of!(DeviceAttr, max_srq_sge),
                220,
            ),
            (
                "device_attr.ack_delay",
                offset_of!(DeviceAttr, local_ca_ack_delay),
                226,
            ),
            (
                "port_attr.pkey_tbl_len",
                offset_of!(PortAttr, pkey_tbl_len),
                32,
            ),
            ("port_attr.link_layer", offset_of!(PortAttr, link_layer), 46),
            ("gid_entry.gid_type", offset_of!(GidEntry, gid_type), 24),
            ("qp_init_attr.qp_type", offset_of!(QpInitAttr, qp_type), 52),
            ("qp_attr.ah_attr", offset_of!(QpAttr, ah_attr), 56),
            ("qp_attr.pkey_index", offset_of!(QpAttr, pkey_index), 120),
            (
                "qp_attr.en_sqd",
                offset_of!(QpAttr, en_sqd_async_notify),
                124,
            ),
            ("qp_attr.rate_limit", offset_of!(QpAttr, rate_limit), 136),
            (
                "async_event.event_type",
                offset_of!(AsyncEvent, event_type),
                8,
            ),
        ];
        for (name, offset, expected) in offsets {
            assert_eq!(offset, expected, "{name}");
        }
    }
}
