//! The functions that libibverbs's drivers call. Debian's builds of some programs (perftest) also link drivers directly
//! (libmlx5, libefa), and those need these symbols. Their registration is accepted and ignored, because all devices are
//! ours.
//!
//! The version is that of rdma-core 34 and later. The arguments of these symbols are never read.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_int, c_void};

use portolan_abi_layout::exports;
use rustix::io::Errno;

use crate::guard::{number, pointer};

/// The version of the node `PORTOLAN_1`, by which our other library and the kernel provider recognize this one.
const PORTOLAN: c_int = 1;

/// A flag that drivers read to learn whether objects of removed devices may be destroyed.
#[repr(transparent)]
struct Flag(#[allow(dead_code, reason = "drivers read it")] u8);

static ALLOW_DISASSOCIATE_DESTROY: Flag = Flag(0);

std::arch::global_asm!(
    ".globl verbs_allow_disassociate_destroy",
    ".type verbs_allow_disassociate_destroy, @object",
    ".size verbs_allow_disassociate_destroy, 1",
    ".set verbs_allow_disassociate_destroy, {flag}",
    flag = sym ALLOW_DISASSOCIATE_DESTROY,
);

macro_rules! refused {
    ($($name:ident)*) => {
        exports! {
            $(fn $name() -> c_int {
                number(|| Err(Errno::OPNOTSUPP))
            })*
        }
    };
}

refused! {
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
}

exports! {
    fn verbs_register_driver_34(_driver: *const c_void) {}

    fn verbs_set_ops(_context: *mut c_void, _table: *const c_void) {}

    fn verbs_uninit_context(_context: *mut c_void) {}

    fn verbs_init_cq(
        _cq: *mut c_void,
        _context: *mut c_void,
        _channel: *mut c_void,
        _own: *mut c_void
    ) {}

    // Drivers' log messages do not concern any device here.
    fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_void) {}

    fn _verbs_init_and_alloc_context(
        _device: *mut c_void,
        _descriptor: c_int,
        _size: usize,
        _context: *mut c_void,
        _driver: u32
    ) -> *mut c_void {
        pointer(|| Err(Errno::OPNOTSUPP))
    }

    fn verbs_open_device(_device: *mut c_void, _own: *mut c_void) -> *mut c_void {
        pointer(|| Err(Errno::OPNOTSUPP))
    }

    fn portolan_verbs() -> c_int {
        PORTOLAN
    }
}
