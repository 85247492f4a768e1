//! All structures of the crate, for tests that compare them with the headers.

use super::{Ah, AsyncEvent, Field, Mw, MwBindInfo, Qp, SendWr, Structure};
use super::{cma, kern, sa, verbs};

/// Every structure.
pub fn structures() -> Vec<Structure> {
    [
        cma::structures(),
        kern::structures(),
        sa::structures(),
        verbs::structures(),
    ]
    .concat()
}

/// Fields of unnamed structures within unions: the enclosing structure, and the path to the field with its offset.
pub fn nested() -> Vec<(&'static str, Field)> {
    macro_rules! nested {
        ($($c:literal, $path:literal, $name:ident, $($field:ident).+: $type:ty;)*) => {
            vec![$(($c, Field {
                name: $path,
                offset: std::mem::offset_of!($name, $($field).+),
                size: size_of::<$type>(),
            })),*]
        };
    }
    nested! {
        "struct ibv_send_wr", "wr.rdma.remote_addr", SendWr, wr.rdma.remote_addr: u64;
        "struct ibv_send_wr", "wr.rdma.rkey", SendWr, wr.rdma.rkey: u32;
        "struct ibv_send_wr", "wr.atomic.remote_addr", SendWr, wr.atomic.remote_addr: u64;
        "struct ibv_send_wr", "wr.atomic.compare_add", SendWr, wr.atomic.compare_add: u64;
        "struct ibv_send_wr", "wr.atomic.swap", SendWr, wr.atomic.swap: u64;
        "struct ibv_send_wr", "wr.atomic.rkey", SendWr, wr.atomic.rkey: u32;
        "struct ibv_send_wr", "wr.ud.ah", SendWr, wr.ud.ah: *mut Ah;
        "struct ibv_send_wr", "wr.ud.remote_qpn", SendWr, wr.ud.remote_qpn: u32;
        "struct ibv_send_wr", "wr.ud.remote_qkey", SendWr, wr.ud.remote_qkey: u32;
        "struct ibv_send_wr", "bind_mw.mw", SendWr, bind_mw.mw: *mut Mw;
        "struct ibv_send_wr", "bind_mw.rkey", SendWr, bind_mw.rkey: u32;
        "struct ibv_send_wr", "bind_mw.bind_info", SendWr, bind_mw.bind_info: MwBindInfo;
        "struct ibv_async_event", "element.port_num", AsyncEvent, element: i32;
        "struct ibv_async_event", "element.qp", AsyncEvent, element: *mut Qp;
    }
}
