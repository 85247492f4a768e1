//! Copies of requests that are longer than the processor's caches.
//!
//! An ordinary store first reads the line that it writes to, and displaces another one from the caches. For bytes that do
//! not fit there, both are in vain. memcpy(3) knows that only if it is called for the whole request, but a request is
//! copied in chunks. So these copies themselves use the processor's stores past the caches, which take two thirds of
//! the time.

#![allow(
    unsafe_code,
    reason = "copies between registered memory, by instructions that have no safe form"
)]

/// Requests of at least this length are copied past the caches: the target's processors could not keep them.
pub(super) const LONG_MIN: u32 = 32 << 20;
/// Four pages are copied side by side, because memory is faster when several pages are open.
#[cfg(target_arch = "x86_64")]
const PAGE: usize = 4096;
#[cfg(target_arch = "x86_64")]
const PAGES: usize = 4;

/// Copies past the caches. If both ranges overlap, the result is undefined bytes.
///
/// # Safety
/// `source` may be read and `target` written to, for `len` bytes.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    const BLOCK: usize = PAGE * PAGES;
    let head = target.align_offset(LINE).min(len);
    let blocks = (len - head) / BLOCK * BLOCK;
    let tail = head + blocks;
    // SAFETY: in bounds by the caller's promise, and `target + head` is aligned if there are blocks.
    unsafe {
        std::ptr::copy(source, target, head);
        for at in (head..tail).step_by(BLOCK) {
            for line in (0..PAGE).step_by(LINE) {
                for page in (0..BLOCK).step_by(PAGE) {
                    let at = at + page + line;
                    copy_line(source.add(at), target.add(at));
                }
            }
        }
        // These stores are not ordered with others, not even with the release of a lock.
        std::arch::x86_64::_mm_sfence();
        std::ptr::copy(source.add(tail), target.add(tail), len - tail);
    }
}

/// Length of a line of the caches.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies a line.
///
/// # Safety
/// `source` may be read and `target` written to, for the length of a line. `target` is a multiple of it.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_line(source: *const u8, target: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (source, target) = (source.cast::<__m128i>(), target.cast::<__m128i>());
    // SAFETY: the caller's promise. Every x86-64 processor has these instructions.
    unsafe {
        let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(source.add(word)));
        for (number, word) in words.into_iter().enumerate() {
            _mm_stream_si128(target.add(number), word);
        }
    }
}

/// Copies. Other processors have no such stores, or decide for themselves.
///
/// # Safety
/// `source` may be read and `target` written to, for `len` bytes.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(source, target, len) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_alignment_and_length_is_copied_exactly() {
        let source: Vec<u8> = (0..100_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        for (from, to) in [(0, 0), (1, 0), (0, 1), (5, 63), (64, 64), (3, 17)] {
            for len in [0, 1, 63, 64, 65, 4096, 16_383, 16_384, 16_450, 50_000] {
                let mut target = vec![0x55; 60_000];
                let whole = target.as_mut_ptr();
                // SAFETY: both vectors are longer.
                unsafe { super::copy(source[from..].as_ptr(), whole.add(to), len) };
                assert!(target[to..to + len] == source[from..from + len]);
                assert!(target[..to].iter().all(|byte| *byte == 0x55));
                assert!(target[to + len..].iter().all(|byte| *byte == 0x55));
            }
        }
    }
}
