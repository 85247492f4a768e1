//! Tag matching: headers on the wire (`infiniband/tm_types.h`), and requests to a shared receive queue.

use std::ffi::{c_int, c_uint};

use super::{Sge, layouts};

/// `tm` of a request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpsTag {
    pub unexpected_cnt: u32,
    pub handle: u32,
    pub add: OpsTagAdd,
}

/// `add` of a tag's request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpsTagAdd {
    pub recv_wr_id: u64,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub tag: u64,
    pub mask: u64,
}

layouts! {
    /// Big-endian.
    struct Tmh = "struct ibv_tmh" { opcode: u8, reserved: [u8; 3], app_ctx: u32, tag: u64 }
    /// Big-endian.
    struct Rvh = "struct ibv_rvh" { va: u64, rkey: u32, len: u32 }
    struct WcTmInfo = "struct ibv_wc_tm_info" { tag: u64, r#priv: u32 }
    /// `tm` has an unnamed type.
    struct OpsWr = "struct ibv_ops_wr" {
        wr_id: u64,
        next: *mut OpsWr,
        opcode: c_uint,
        flags: c_int,
        tm: OpsTag,
    }
}
