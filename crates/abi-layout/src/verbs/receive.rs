//! Receive-only work queues, and tables that distribute packets among them.

use std::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::{Context, Cq, Pd, Slot, layouts};

layouts! {
    struct Wq = "struct ibv_wq" {
        context: *mut Context,
        wq_context: *mut c_void,
        pd: *mut Pd,
        cq: *mut Cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv: Slot,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
    struct WqInitAttr = "struct ibv_wq_init_attr" {
        wq_context: *mut c_void,
        wq_type: c_uint,
        max_wr: u32,
        max_sge: u32,
        pd: *mut Pd,
        cq: *mut Cq,
        comp_mask: u32,
        create_flags: u32,
    }
    struct WqAttr = "struct ibv_wq_attr" {
        attr_mask: u32,
        wq_state: c_uint,
        curr_wq_state: c_uint,
        flags: u32,
        flags_mask: u32,
    }
    struct RwqIndTable = "struct ibv_rwq_ind_table" {
        context: *mut Context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
    struct RwqIndTableInitAttr = "struct ibv_rwq_ind_table_init_attr" {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut Wq,
        comp_mask: u32,
    }
}
