//! Structures that say how they are laid out.

use super::{Ah, AsyncEvent, Mw, MwBindInfo, OpsWr, Qp, SendWr, Sge, cma, kern, sa, verbs};

/// What a compiler makes of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    /// Its name in C, with `struct`.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// Its fields in order.
    pub fields: Vec<Field>,
}

/// A field of a [`Structure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in C.
    pub name: &'static str,
    /// Bytes from the structure's beginning.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

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

/// Fields of structures without a name, which lie in unions: the structure around them, the way there, and
/// where that is.
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
        "struct ibv_ops_wr", "tm.unexpected_cnt", OpsWr, tm.unexpected_cnt: u32;
        "struct ibv_ops_wr", "tm.handle", OpsWr, tm.handle: u32;
        "struct ibv_ops_wr", "tm.add.recv_wr_id", OpsWr, tm.add.recv_wr_id: u64;
        "struct ibv_ops_wr", "tm.add.sg_list", OpsWr, tm.add.sg_list: *mut Sge;
        "struct ibv_ops_wr", "tm.add.num_sge", OpsWr, tm.add.num_sge: i32;
        "struct ibv_ops_wr", "tm.add.tag", OpsWr, tm.add.tag: u64;
        "struct ibv_ops_wr", "tm.add.mask", OpsWr, tm.add.mask: u64;
        "struct ibv_async_event", "element.port_num", AsyncEvent, element: i32;
        "struct ibv_async_event", "element.qp", AsyncEvent, element: *mut Qp;
    }
}

/// Bytes of a field that a function chooses.
pub(crate) fn size_of_field<S, F>(_: impl FnOnce(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Defines structures of numbers, C's pointers and optional functions, which describe themselves.
macro_rules! layouts {
    ($(
        $(#[$attr:meta])*
        struct $name:ident = $c:literal { $($field:ident: $type:ty),* $(,)? }
    )*) => {
        $(
            $(#[$attr])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $(pub $field: $type),* }

            impl $name {
                /// All bytes zero: no pointer, no function.
                pub fn zeroed() -> Self {
                    // SAFETY: its fields are numbers, C's pointers, and functions that may be absent: each of them
                    // may be zero.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        pub(super) fn structures() -> Vec<$crate::Structure> {
            vec![$($crate::Structure {
                name: $c,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$($crate::Field {
                    name: stringify!($field).trim_start_matches("r#"),
                    offset: std::mem::offset_of!($name, $field),
                    size: $crate::describe::size_of_field(|all: &$name| &all.$field),
                }),*],
            }),*]
        }
    };
}

pub(crate) use layouts;
