//! C's structures, as rdma-core's header `infiniband/verbs.h` has them. Programs reach into them, so they are the
//! ABI. Names are C's, without their prefixes.
//!
//! Each structure can describe itself ([`Structure`]), and tests hold that against the header.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_snake_case,
    reason = "the header says what the fields are; most are pointers of C's"
)]

mod attr;
mod context;
mod kern;
mod objects;
mod work;

pub use attr::*;
pub use context::*;
pub use kern::*;
pub use objects::*;
pub use work::*;

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
        attr::structures(),
        context::structures(),
        kern::structures(),
        objects::structures(),
        work::structures(),
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
        "struct ibv_send_wr", "bind_mw.bind_info.mr", SendWr, bind_mw.bind_info.mr: *mut Mr;
        "struct ibv_send_wr", "bind_mw.bind_info.addr", SendWr, bind_mw.bind_info.addr: u64;
        "struct ibv_async_event", "element.port_num", AsyncEvent, element: i32;
        "struct ibv_async_event", "element.qp", AsyncEvent, element: *mut Qp;
    }
}

/// Bytes of a field that a function chooses.
fn size_of_field<S, F>(_: impl FnOnce(&S) -> &F) -> usize {
    size_of::<F>()
}

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
        )*

        pub(super) fn structures() -> Vec<super::Structure> {
            vec![$(super::Structure {
                name: $c,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$(super::Field {
                    name: stringify!($field).trim_start_matches("r#"),
                    offset: std::mem::offset_of!($name, $field),
                    size: super::size_of_field(|all: &$name| &all.$field),
                }),*],
            }),*]
        }
    };
}

use layouts;
