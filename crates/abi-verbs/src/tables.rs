//! The function tables of an open device.

use crate::layout::{Context, ContextOps, VerbsContext};
use crate::{cq, mw, post, qp, query, srq, xrcd};

/// The functions that the header's inline functions call.
pub(crate) fn context_ops() -> ContextOps {
    ContextOps {
        alloc_mw: Some(mw::alloc),
        bind_mw: Some(mw::bind),
        dealloc_mw: Some(mw::dealloc),
        poll_cq: Some(cq::poll),
        req_notify_cq: Some(cq::request_notification),
        post_srq_recv: Some(srq::post_recv),
        post_send: Some(post::send),
        post_recv: Some(post::recv),
        ..ContextOps::zeroed()
    }
}

/// The functions that newer inline functions call. A missing one makes them return EOPNOTSUPP.
pub(crate) fn verbs_context(context: Context) -> VerbsContext {
    VerbsContext {
        query_port: Some(query::port_extended),
        query_rt_values: Some(query::values),
        create_cq_ex: Some(cq::create_extended),
        query_device_ex: Some(query::device_extended),
        open_qp: Some(qp::open),
        create_qp_ex: Some(qp::create_extended),
        get_srq_num: Some(srq::get_number),
        create_srq_ex: Some(srq::create_extended),
        open_xrcd: Some(xrcd::open),
        close_xrcd: Some(xrcd::close),
        sz: size_of::<VerbsContext>(),
        context,
        ..VerbsContext::zeroed()
    }
}
