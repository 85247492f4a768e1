//! Enums as tables, so that no list repeats their variants, and the planting of an engine's defects.

/// Defines an enum with `ALL`, its variants in order. If each variant has a text (`=> "text"`), also `name()`
/// and `Display`.
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

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
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

/// Defines `Mutant`: defects that a simulator plants in an engine and must find, to show that its checks work.
///
/// Without the feature `mutants` of the engine's crate, which no shipped build enables, `is_planted` is constantly
/// `false` and compiles away. With it, a thread plants one defect at a time, initially none.
#[macro_export]
macro_rules! mutants {
    ($(#[$attr:meta])* pub enum Mutant { $($variants:tt)* }) => {
        $crate::enum_table! {
            $(#[$attr])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant { $($variants)* }
        }

        /// Whether the engines of this thread have the defect.
        #[cfg(not(feature = "mutants"))]
        pub(crate) const fn is_planted(_: Mutant) -> bool {
            false
        }

        #[cfg(feature = "mutants")]
        pub(crate) use planted::is_planted;
        #[cfg(feature = "mutants")]
        pub use planted::plant;

        #[cfg(feature = "mutants")]
        mod planted {
            extern crate std;

            use core::cell::Cell;

            use super::Mutant;

            std::thread_local! {
                static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
            }

            /// Plants the defect in the engines of this thread, replacing any other; `None` removes it.
            pub fn plant(mutant: Option<Mutant>) {
                PLANTED.set(mutant);
            }

            /// Whether the engines of this thread have the defect.
            pub(crate) fn is_planted(mutant: Mutant) -> bool {
                PLANTED.get() == Some(mutant)
            }
        }
    };
}
