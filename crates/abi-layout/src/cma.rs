//! `rdma/rdma_cma.h`, and `infiniband/ib.h` for addresses of InfiniBand.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use super::layouts;
use super::{AhAttr, CompChannel, Context, Cq, Gid, Pd, Qp, SaPathRec, Srq};

layouts! {
    struct IbAddr = "struct ib_addr" { ib_u: [u64; 2] }
    /// Big-endian, except the family and the scope id.
    struct SockaddrIb = "struct sockaddr_ib" {
        sib_family: u16,
        sib_pkey: u16,
        sib_flowinfo: u32,
        sib_addr: IbAddr,
        sib_sid: u64,
        sib_sid_mask: u64,
        sib_scope_id: u64,
    }
    struct IbAddrs = "struct rdma_ib_addr" { sgid: Gid, dgid: Gid, pkey: u16 }
    struct Addr = "struct rdma_addr" {
        src_storage: sockaddr_storage,
        dst_storage: sockaddr_storage,
        addr: IbAddrs,
    }
    struct Route = "struct rdma_route" {
        addr: Addr,
        path_rec: *mut SaPathRec,
        num_paths: c_int,
    }
    struct EventChannel = "struct rdma_event_channel" { fd: c_int }
    struct CmId = "struct rdma_cm_id" {
        verbs: *mut Context,
        channel: *mut EventChannel,
        context: *mut c_void,
        qp: *mut Qp,
        route: Route,
        ps: c_uint,
        port_num: u8,
        event: *mut CmEvent,
        send_cq_channel: *mut CompChannel,
        send_cq: *mut Cq,
        recv_cq_channel: *mut CompChannel,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        pd: *mut Pd,
        qp_type: c_uint,
    }
    struct ConnParam = "struct rdma_conn_param" {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
    struct UdParam = "struct rdma_ud_param" {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: AhAttr,
        qp_num: u32,
        qkey: u32,
    }
    struct CmEvent = "struct rdma_cm_event" {
        id: *mut CmId,
        listen_id: *mut CmId,
        event: c_uint,
        status: c_int,
        param: EventParam,
    }
    struct AddrInfo = "struct rdma_addrinfo" {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut AddrInfo,
    }
    struct JoinMcAttr = "struct rdma_cm_join_mc_attr_ex" {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }
}

/// `param` of `struct rdma_cm_event`; newer headers also have `arg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union EventParam {
    pub conn: ConnParam,
    pub ud: UdParam,
    pub arg: u64,
}

/// Numbers of `enum rdma_cm_event_type`.
pub mod event_type {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const MULTICAST_ERROR: u32 = 13;
    pub const ADDRINFO_RESOLVED: u32 = 16;
    pub const ADDRINFO_ERROR: u32 = 17;
    pub const USER: u32 = 18;
    pub const INTERNAL: u32 = 19;
}

/// `RDMA_PS_IPOIB`.
pub const PS_IPOIB: u32 = 0x0002;
/// `RDMA_PS_TCP`.
pub const PS_TCP: u32 = 0x0106;
/// `RDMA_PS_UDP`.
pub const PS_UDP: u32 = 0x0111;
/// `RDMA_UDP_QKEY`.
pub const UDP_QKEY: u32 = 0x0123_4567;
/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: the device's maximum.
pub const MAX_RESOURCES: u8 = 0xFF;
/// `RAI_PASSIVE`.
pub const RAI_PASSIVE: c_int = 1;
/// `RDMA_OPTION_IB`.
pub const OPTION_IB: u32 = 1;
/// `RDMA_OPTION_IB_PATH`.
pub const OPTION_IB_PATH: u32 = 1;
