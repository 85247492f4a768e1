//! Copies between a program's bytes and memory that others may access at the same time, by the processor's wide loads and stores.
//!
//! A loop of single words takes a third longer to get a stream's data from another processor. The copies are in assembly, because
//! the language has no wider atomic type.

/// Bytes of a step.
const STEP: usize = 128;

/// Copies a part from the beginning of `from` to `into`, in whole words of eight bytes. Returns the number of bytes; 0 if there are
/// few or if the processor has no such loads.
///
/// # Safety
/// `from` points to as many bytes as `into` has, and is aligned to a word. They stay mapped. Others access them by atomics or are
/// devices.
#[inline]
pub(super) unsafe fn copy_out(from: *const u8, into: &mut [u8]) -> usize {
    // SAFETY: the caller's promise.
    unsafe { copy(from, into.as_mut_ptr(), into.len()) }
}

/// Copies a part from the beginning of `from` to `to`, like [`copy_out`].
///
/// # Safety
/// `to` points to as many bytes as `from` has, and is aligned to a word. Otherwise as for [`copy_out`].
#[inline]
pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) -> usize {
    // SAFETY: the caller's promise.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

/// # Safety
/// Both point to `length` bytes. One of them is memory of this program alone; the other meets the conditions of [`copy_out`].
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) -> usize {
    if length < 2 * STEP {
        return 0;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx") {
        let length = length - length % STEP;
        // SAFETY: the processor has AVX; `length` is at most that of both and a multiple of the step, at least one.
        unsafe { copy_steps(from, to, length) };
        return length;
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (from, to);
    0
}

/// # Safety
/// The processor has AVX. `length` is a multiple of [`STEP`], not 0. Otherwise as for [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
unsafe fn copy_steps(from: *const u8, to: *mut u8, length: usize) {
    // Each aligned word is copied whole, because it is in one line of the caches. The manuals promise that only for shorter
    // accesses, but every processor with AVX does it.
    //
    // SAFETY: the caller's promise. Flags and the named registers are all that it changes besides `to`.
    unsafe {
        std::arch::asm!(
            "2:",
            "vmovdqu {a}, ymmword ptr [{from}]",
            "vmovdqu {b}, ymmword ptr [{from} + 32]",
            "vmovdqu {c}, ymmword ptr [{from} + 64]",
            "vmovdqu {d}, ymmword ptr [{from} + 96]",
            "vmovdqu ymmword ptr [{to}], {a}",
            "vmovdqu ymmword ptr [{to} + 32], {b}",
            "vmovdqu ymmword ptr [{to} + 64], {c}",
            "vmovdqu ymmword ptr [{to} + 96], {d}",
            "add {from}, {step}",
            "add {to}, {step}",
            "sub {left}, {step}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) length => _,
            step = const STEP,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_copy_is_a_part_from_the_beginning_and_nothing_else_is_written(
            skip in 0usize..8,
            length in 0usize..2000,
        ) {
            let words: Vec<u64> = (0..300).map(|word| u64::wrapping_mul(word, 0x0101_0101_0101_0101)).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut into = vec![0xEE; length];
            // SAFETY: 300 words are more than eight and 2000 bytes.
            let copied = unsafe { copy_out(words.as_ptr().add(skip).cast(), &mut into) };
            let mut again = [u64::from_ne_bytes([0xEE; 8]); 300];
            // SAFETY: as above.
            let in_again = unsafe { copy_in(&bytes[skip * 8..][..length], again.as_mut_ptr().cast()) };
            prop_assert_eq!(in_again, copied);
            let again: Vec<u8> = again.iter().flat_map(|word| word.to_ne_bytes()).collect();
            prop_assert_eq!(&again[..length], &into);
            prop_assert!(copied <= length && copied.is_multiple_of(STEP));
            prop_assert_eq!(&into[..copied], &bytes[skip * 8..][..copied]);
            prop_assert!(into[copied..].iter().all(|byte| *byte == 0xEE));
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if std::arch::is_x86_feature_detected!("avx") && length >= 2 * STEP {
                prop_assert!(copied > length - STEP);
            }
        }
    }
}
