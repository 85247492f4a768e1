//! The number of the running thread.

#![allow(unsafe_code, reason = "one instruction of the processor")]

/// The address of this thread's control block, which no other thread has while this one lives. A multiple of 16, never 0.
///
/// One instruction. A thread-local variable of a shared library would cost a call.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
    {
        let address: usize;
        // SAFETY: on Linux, the first word of the block at FS is its own address (the x86-64 ABI's thread-local storage).
        unsafe {
            std::arch::asm!(
                "mov {}, fs:0",
                out(reg) address,
                options(nostack, preserves_flags, readonly, pure)
            );
        }
        address
    }
    #[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri))))]
    {
        thread_local! {
            static PLACE: Place = const { Place(0) };
        }
        #[repr(align(16))]
        struct Place(u8);
        PLACE.with(|place| std::ptr::from_ref(&place.0) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_live_at_the_same_time_have_different_numbers() {
        let own = this_thread();
        let other = std::thread::scope(|scope| scope.spawn(this_thread).join().unwrap());
        assert_ne!(own, 0);
        assert_eq!((own | other) % 16, 0);
        assert_ne!(own, other);
        assert_eq!(own, this_thread());
    }
}
