//! The functions of C, by their names.
//!
//! rustc would export a name of its own accord without a version, and its word goes before that of the script of
//! versions (`libibverbs.map`). So the names are the assembler's: each is a jump to the function.

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

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
                jump!(),
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                ".popsection",
                function = sym $name,
            );
        )*
    };
}

mod connections;
mod devices;
mod kern;
mod private;
mod queues;
mod words;
