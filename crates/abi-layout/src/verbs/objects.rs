//! Objects that programs hold pointers to: protection domains, regions, queues, channels.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::{Context, DataBuf, MwBindInfo, Sge, layouts};

/// A function that only occupies a slot of the table.
pub type Slot = *mut c_void;

layouts! {
    struct DeviceOps = "struct _ibv_device_ops" { _dummy1: Slot, _dummy2: Slot }
    struct Device = "struct ibv_device" {
        _ops: DeviceOps,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    struct Pd = "struct ibv_pd" { context: *mut Context, handle: u32 }
    struct Mr = "struct ibv_mr" {
        context: *mut Context,
        pd: *mut Pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    struct Mw = "struct ibv_mw" {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        r#type: c_uint,
    }
    struct Ah = "struct ibv_ah" { context: *mut Context, pd: *mut Pd, handle: u32 }
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
    struct PollCqAttr = "struct ibv_poll_cq_attr" { comp_mask: u32 }
    /// Starts like [`Cq`].
    struct CqEx = "struct ibv_cq_ex" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
        read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
        read_cvlan: Slot,
        read_flow_tag: Slot,
        read_tm_info: Slot,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
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
    struct QpEx = "struct ibv_qp_ex" {
        qp_base: Qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
        wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_tso: Slot,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_atomic_write: Slot,
    }
    /// The union in it has the width of a pointer.
    struct AsyncEvent = "struct ibv_async_event" { element: *mut c_void, event_type: c_uint }
}
