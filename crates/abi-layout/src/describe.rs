//! Structures that describe their own layout.

/// The layout of a structure.
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
    /// Offset in bytes.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// Size of the field that a function selects.
pub(crate) fn size_of_field<S, F>(_: impl FnOnce(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Defines structures of numbers, C pointers and optional functions, which describe themselves.
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
                #[allow(unsafe_code, reason = "zero is valid for every field")]
                pub fn zeroed() -> Self {
                    // SAFETY: its fields are numbers, C pointers and optional functions, each of which may be zero.
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
