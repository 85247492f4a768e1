//! Enums as tables, so that no list repeats their variants.

/// Defines an enum with `ALL`, its variants in order. If each variant has a text (`=> "text"`), also `name()`.
#[macro_export]
macro_rules! enum_table {
    (
        $(#[$attr:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident $(= $number:literal)? => $name:literal,)+ }
    ) => {
        $crate::enum_table! {
            $(#[$attr])*
            pub enum $type { $($(#[$doc])* $variant $(= $number)?,)+ }
        }

        impl $type {
            /// Its name in words, for errors, counters and listings.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
    (
        $(#[$attr:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident $(= $number:literal)?,)+ }
    ) => {
        $(#[$attr])*
        pub enum $type {
            $($(#[$doc])* $variant $(= $number)?,)+
        }

        impl $type {
            /// Every variant, in order.
            pub const ALL: [Self; [$(stringify!($variant),)+].len()] = [$(Self::$variant,)+];
        }
    };
}
