//! The functions of a C library, by their names.
//!
//! rustc would export an unversioned name by itself, which overrides the library's version script
//! of versions. So the names are the assembler's: each is a jump to the function. The macro is to be called in the
//! crate that becomes the library: what other crates assemble is not exported.

/// The instruction that jumps to a function.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

/// The instruction that jumps to a function.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Defines functions of C's calling convention and exports them by their names.
#[macro_export]
macro_rules! exports {
    ($(
        fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block
    )*) => {
        $(
            /// As its page says. A thread that waits in it may be cancelled, and unwinds then.
            ///
            /// # Safety
            /// Pointers are what the page says they are.
            #[allow(clippy::allow_attributes, unused_unsafe, reason = "not every one has pointers")]
            unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? $body

            std::arch::global_asm!(
                concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
                concat!(".globl ", stringify!($name)),
                concat!(".type ", stringify!($name), ", @function"),
                concat!(stringify!($name), ":"),
                $crate::jump!(),
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                ".popsection",
                function = sym $name,
            );
        )*
    };
}
