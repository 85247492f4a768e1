//! An open device: tables of functions. The header's inline functions call those of the inner table.

use std::ffi::{c_int, c_uint, c_void};

use libc::pthread_mutex_t;

use super::{
    Cq, CqEx, CqInitAttrEx, Device, DeviceAttrEx, Mw, MwBind, Pd, PortAttr, Qp, QpInitAttrEx,
    QpOpenAttr, QueryDeviceExInput, RecvWr, SendWr, Slot, Srq, SrqInitAttrEx, ValuesEx, Wc, Xrcd,
    XrcdInitAttr, layouts,
};

layouts! {
    /// Its empty slots held functions that are now symbols of the library.
    struct ContextOps = "struct ibv_context_ops" {
        _compat_query_device: Slot,
        _compat_query_port: Slot,
        _compat_alloc_pd: Slot,
        _compat_dealloc_pd: Slot,
        _compat_reg_mr: Slot,
        _compat_rereg_mr: Slot,
        _compat_dereg_mr: Slot,
        alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
        _compat_create_cq: Slot,
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
        _compat_cq_event: Slot,
        _compat_resize_cq: Slot,
        _compat_destroy_cq: Slot,
        _compat_create_srq: Slot,
        _compat_modify_srq: Slot,
        _compat_query_srq: Slot,
        _compat_destroy_srq: Slot,
        post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_qp: Slot,
        _compat_query_qp: Slot,
        _compat_modify_qp: Slot,
        _compat_destroy_qp: Slot,
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_ah: Slot,
        _compat_destroy_ah: Slot,
        _compat_attach_mcast: Slot,
        _compat_detach_mcast: Slot,
        _compat_async_event: Slot,
    }
    struct Context = "struct ibv_context" {
        device: *mut Device,
        ops: ContextOps,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    /// Newer versions extend it at the beginning; programs hold a pointer to the context at its end. An empty slot is a
    /// function that the devices lack: the header's inline functions then return EOPNOTSUPP.
    struct VerbsContext = "struct verbs_context" {
        query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
        advise_mr: Slot,
        alloc_null_mr: Slot,
        read_counters: Slot,
        attach_counters_point_flow: Slot,
        create_counters: Slot,
        destroy_counters: Slot,
        reg_dm_mr: Slot,
        alloc_dm: Slot,
        free_dm: Slot,
        modify_flow_action_esp: Slot,
        destroy_flow_action: Slot,
        create_flow_action_esp: Slot,
        modify_qp_rate_limit: Slot,
        alloc_parent_domain: Slot,
        dealloc_td: Slot,
        alloc_td: Slot,
        modify_cq: Slot,
        post_srq_ops: Slot,
        destroy_rwq_ind_table: Slot,
        create_rwq_ind_table: Slot,
        destroy_wq: Slot,
        modify_wq: Slot,
        create_wq: Slot,
        query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
        create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
        r#priv: Slot,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut Context,
                *const QueryDeviceExInput,
                *mut DeviceAttrEx,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Slot,
        ABI_placeholder2: Slot,
        ibv_create_flow: Slot,
        ABI_placeholder1: Slot,
        open_qp: Option<unsafe extern "C" fn(*mut Context, *mut QpOpenAttr) -> *mut Qp>,
        create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
        open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
        close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
        _ABI_placeholder3: u64,
        sz: usize,
        context: Context,
    }
}
