//! Full memory fences that cost less than the compiler's.

#![allow(unsafe_code, reason = "one instruction of the processor")]

use std::sync::atomic::Ordering;

/// As [`std::sync::atomic::fence`].
///
/// On x86-64 a sequentially consistent fence is compiled to MFENCE, which on many processors also stops later
/// instructions from starting. A locked instruction orders memory in the same way (Intel SDM volume 3, 9.2.2; AMD APM
/// volume 2, 7.4.2), and Linux's `smp_mb` is one.
#[inline(always)]
pub fn fence(order: Ordering) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if order == Ordering::SeqCst {
        // SAFETY: it changes no bit of a word of the stack, and no register but the flags. As the compiler has to assume
        // that it accesses all memory, no access moves across it.
        unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
        return;
    }
    std::sync::atomic::fence(order);
}

/// A sequentially consistent fence, right after a sequentially consistent store of this thread or an exchange of any
/// order.
///
/// On x86-64 that is a locked instruction (XCHG, LOCK CMPXCHG) and so a fence itself: nothing more is executed.
#[inline(always)]
pub fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    use super::*;

    const STORE_AND_FENCE: fn(&AtomicU32) = |word| {
        word.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    };
    const EXCHANGE: fn(&AtomicU32) = |word| {
        let _ = word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        fence_after_exchange();
    };
    const STORE: fn(&AtomicU32) = |word| {
        word.store(1, Ordering::SeqCst);
        fence_after_exchange();
    };

    #[test]
    fn of_two_threads_that_write_and_then_read_one_sees_the_other() {
        for write in [STORE_AND_FENCE, EXCHANGE, STORE] {
            let words = [AtomicU32::new(0), AtomicU32::new(0)];
            let seen = [AtomicU32::new(0), AtomicU32::new(0)];
            let together = Barrier::new(2);
            let run = |own: usize| {
                for _ in 0..10_000 {
                    together.wait();
                    write(&words[own]);
                    let other = words[1 - own].load(Ordering::Relaxed);
                    seen[own].store(other, Ordering::Relaxed);
                    if together.wait().is_leader() {
                        let either = seen.iter().any(|seen| seen.load(Ordering::Relaxed) == 1);
                        assert!(either, "neither thread saw the other's word");
                        words
                            .iter()
                            .for_each(|word| word.store(0, Ordering::Relaxed));
                    }
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| run(0));
                run(1);
            });
        }
    }
}
