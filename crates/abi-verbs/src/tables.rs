//! The function tables of an open device.

use crate::layout::{Context, ContextOps, VerbsContext};
use crate::{cq, mw, post, qp, query, srq, xrcd};

const NONE: *mut std::ffi::c_void = std::ptr::null_mut();

/// The functions that the header's inline functions call.
pub(crate) fn context_ops() -> ContextOps {
    ContextOps {
        _compat_query_device: NONE,
        _compat_query_port: NONE,
        _compat_alloc_pd: NONE,
        _compat_dealloc_pd: NONE,
        _compat_reg_mr: NONE,
        _compat_rereg_mr: NONE,
        _compat_dereg_mr: NONE,
        alloc_mw: Some(mw::alloc),
        bind_mw: Some(mw::bind),
        dealloc_mw: Some(mw::dealloc),
        _compat_create_cq: NONE,
        poll_cq: Some(cq::poll),
        req_notify_cq: Some(cq::request_notification),
        _compat_cq_event: NONE,
        _compat_resize_cq: NONE,
        _compat_destroy_cq: NONE,
        _compat_create_srq: NONE,
        _compat_modify_srq: NONE,
        _compat_query_srq: NONE,
        _compat_destroy_srq: NONE,
        post_srq_recv: Some(srq::post_recv),
        _compat_create_qp: NONE,
        _compat_query_qp: NONE,
        _compat_modify_qp: NONE,
        _compat_destroy_qp: NONE,
        post_send: Some(post::send),
        post_recv: Some(post::recv),
        _compat_create_ah: NONE,
        _compat_destroy_ah: NONE,
        _compat_attach_mcast: NONE,
        _compat_detach_mcast: NONE,
        _compat_async_event: NONE,
    }
}

/// The functions that newer inline functions call. A missing one makes them return EOPNOTSUPP.
pub(crate) fn verbs_context(context: Context) -> VerbsContext {
    VerbsContext {
        query_port: Some(query::port_extended),
        advise_mr: NONE,
        alloc_null_mr: NONE,
        read_counters: NONE,
        attach_counters_point_flow: NONE,
        create_counters: NONE,
        destroy_counters: NONE,
        reg_dm_mr: NONE,
        alloc_dm: NONE,
        free_dm: NONE,
        modify_flow_action_esp: NONE,
        destroy_flow_action: NONE,
        create_flow_action_esp: NONE,
        modify_qp_rate_limit: NONE,
        alloc_parent_domain: NONE,
        dealloc_td: NONE,
        alloc_td: NONE,
        modify_cq: NONE,
        post_srq_ops: NONE,
        destroy_rwq_ind_table: NONE,
        create_rwq_ind_table: NONE,
        destroy_wq: NONE,
        modify_wq: NONE,
        create_wq: NONE,
        query_rt_values: Some(query::values),
        create_cq_ex: Some(cq::create_extended),
        r#priv: NONE,
        query_device_ex: Some(query::device_extended),
        ibv_destroy_flow: NONE,
        ABI_placeholder2: NONE,
        ibv_create_flow: NONE,
        ABI_placeholder1: NONE,
        open_qp: Some(qp::open),
        create_qp_ex: Some(qp::create_extended),
        get_srq_num: Some(srq::get_number),
        create_srq_ex: Some(srq::create_extended),
        open_xrcd: Some(xrcd::open),
        close_xrcd: Some(xrcd::close),
        _ABI_placeholder3: 0,
        sz: size_of::<VerbsContext>(),
        context,
    }
}
