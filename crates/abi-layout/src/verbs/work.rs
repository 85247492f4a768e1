//! Work requests and completions.

use std::ffi::{c_int, c_uint, c_void};

use super::{Ah, Mw, MwBindInfo, layouts};

/// `wr` of a work request: the destination.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Remote {
    pub rdma: RemoteRdma,
    pub atomic: RemoteAtomic,
    pub ud: RemoteUd,
}

/// For writes and reads.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RemoteRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// For atomics.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RemoteAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// For datagrams.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RemoteUd {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// For binding a memory window.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bind {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

layouts! {
    struct Sge = "struct ibv_sge" { addr: u64, length: u32, lkey: u32 }
    struct DataBuf = "struct ibv_data_buf" { addr: *mut c_void, length: usize }
    /// `imm_data` is a union with `invalidate_rkey`.
    struct SendWr = "struct ibv_send_wr" {
        wr_id: u64,
        next: *mut SendWr,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: Remote,
        qp_type: u32,
        bind_mw: Bind,
    }
    struct RecvWr = "struct ibv_recv_wr" {
        wr_id: u64,
        next: *mut RecvWr,
        sg_list: *mut Sge,
        num_sge: c_int,
    }
    /// `imm_data` is a union with `invalidated_rkey`.
    struct Wc = "struct ibv_wc" {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
}
