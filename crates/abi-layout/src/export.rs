//! Exports the functions of a C library by name.
//!
//! rustc would export an unversioned name, which overrides the version in the library's version script. So the
//! assembler defines the names: each is a jump to the function. Call the macro in the crate that becomes the library,
//! because symbols assembled in other crates are not exported.

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

/// Defines functions with C's calling convention and exports their names.
#[macro_export]
macro_rules! exports {
    ($(
        fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block
    )*) => {
        $(
            /// See the manual page. A thread that waits in it may be cancelled, and then unwinds.
            ///
            /// # Safety
            /// Pointers are valid as the page requires.
            #[allow(clippy::allow_attributes, unused_unsafe, reason = "not every function has pointers")]
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
