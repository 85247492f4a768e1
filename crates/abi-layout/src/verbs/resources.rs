//! XRC domains and clocks of a device.

use std::ffi::{c_int, c_uint, c_void};

use libc::timespec;

use super::{Context, layouts};

layouts! {
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
    struct ValuesEx = "struct ibv_values_ex" { comp_mask: u32, raw_clock: timespec }
}
