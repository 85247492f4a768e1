//! Other resources of a device: thread domains, XRC domains, device memory, counters, clocks.

use std::ffi::{c_int, c_uint, c_void};

use libc::timespec;

use super::{Context, Pd, Slot, layouts};

layouts! {
    struct Td = "struct ibv_td" { context: *mut Context }
    struct TdInitAttr = "struct ibv_td_init_attr" { comp_mask: u32 }
    struct ParentDomainInitAttr = "struct ibv_parent_domain_init_attr" {
        pd: *mut Pd,
        td: *mut Td,
        comp_mask: u32,
        alloc: Slot,
        free: Slot,
        pd_context: *mut c_void,
    }
    struct Xrcd = "struct ibv_xrcd" { context: *mut Context }
    struct XrcdInitAttr = "struct ibv_xrcd_init_attr" {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }
    struct QpOpenAttr = "struct ibv_qp_open_attr" {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut Xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }
    struct Dm = "struct ibv_dm" {
        context: *mut Context,
        memcpy_to_dm: Slot,
        memcpy_from_dm: Slot,
        comp_mask: u32,
        handle: u32,
    }
    struct AllocDmAttr = "struct ibv_alloc_dm_attr" {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }
    struct Counters = "struct ibv_counters" { context: *mut Context }
    struct CountersInitAttr = "struct ibv_counters_init_attr" { comp_mask: u32 }
    struct CounterAttachAttr = "struct ibv_counter_attach_attr" {
        counter_desc: c_uint,
        index: u32,
        comp_mask: u32,
    }
    struct ValuesEx = "struct ibv_values_ex" { comp_mask: u32, raw_clock: timespec }
    struct QpRateLimitAttr = "struct ibv_qp_rate_limit_attr" {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
    struct ModerateCq = "struct ibv_moderate_cq" { cq_count: u16, cq_period: u16 }
    struct ModifyCqAttr = "struct ibv_modify_cq_attr" { attr_mask: u32, moderate: ModerateCq }
}
