//! C's structures, as the headers of rdma-core have them: `rdma/rdma_cma.h`, `infiniband/verbs.h` and
//! `infiniband/sa.h`. Programs reach into them, so they are the ABI. Names are C's, without their prefixes.
//!
//! Each structure can describe itself ([`Structure`]), and tests hold that against the headers.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_snake_case,
    reason = "the headers say what the fields are; most are pointers of C's"
)]

mod cma;
mod sa;
mod verbs;

pub use cma::*;
pub use sa::*;
pub use verbs::*;

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
    [cma::structures(), sa::structures(), verbs::structures()].concat()
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
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field),
                    size: super::size_of_field(|all: &$name| &all.$field),
                }),*],
            }),*]
        }
    };
}

use layouts;
