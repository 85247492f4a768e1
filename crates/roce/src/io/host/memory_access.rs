//! Copies between packets and the application's memory. Only this module accesses that memory.
//!
//! The engine has checked key, range and rights against the memory table. The caller holds the table's read lock from
//! that check to the end of the copy. Deregistration takes the write lock, so after it returns no copy can touch the
//! memory.
//!
//! The application may access the same bytes at the same time, as with an adapter that uses DMA. So copies use raw
//! pointers and never create a reference to the memory.

#![allow(
    unsafe_code,
    reason = "the copies to and from the application's memory"
)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::engine::{AtomicKind, AtomicOperation, Payload, PlannedBytes, PlannedSend, Segment};
use crate::io::host::long_copy;

/// Copies received bytes to their place, the last bytes last: a program that spins on the last byte of a message
/// finds the rest complete when it changes.
///
/// If the last eight bytes are an aligned word, they are stored together, so that a flag of up to eight bytes appears
/// whole.
///
/// # Safety
/// `addr` points to `bytes.len()` bytes of a registered region that may be written. The memory table has been locked
/// for reading since that was checked.
pub(crate) unsafe fn place(addr: u64, bytes: &[u8]) {
    let Some((&last, body)) = bytes.split_last() else {
        return;
    };
    let to = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    if let Some((head, word)) = body_and_word(addr, bytes) {
        // SAFETY: the caller promises that `to..to + bytes.len()` is writable. A packet's buffer never overlaps the
        // registered memory that this copy writes.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len()) };
        // SAFETY: in bounds as above, and `body_and_word` checked the alignment. Atomic, because the program may be
        // spinning on it.
        let word_at = unsafe { AtomicU64::from_ptr(to.add(head.len()).cast()) };
        word_at.store(u64::from_ne_bytes(word), Ordering::Release);
    } else {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len()) };
        // SAFETY: in bounds as above, and a byte is always aligned.
        let last_at = unsafe { AtomicU8::from_ptr(to.add(body.len())) };
        last_at.store(last, Ordering::Release);
    }
}

/// Begins to fetch a line of memory that will be written, so that no other processor has it. Only x86-64 processors do. The address
/// may be any.
#[inline]
pub(crate) fn prefetch_to_write(addr: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        // In assembly: the compiler's own makes it a fetch to read unless it knows that the processor has this one.
        //
        // SAFETY: it changes nothing but the caches, and has no effect where nothing is mapped or on a processor without it.
        unsafe {
            std::arch::asm!(
                "prefetchw byte ptr [{at}]",
                at = in(reg) addr,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = addr;
}

/// The bytes of a payload in a ring, which its writer may change meanwhile.
///
/// # Safety
/// `addr` points to `N` bytes of a ring.
pub(crate) unsafe fn read_payload<const N: usize>(addr: u64) -> [u8; N] {
    let from = std::ptr::with_exposed_provenance::<[u8; N]>(addr as usize);
    // SAFETY: the caller's promise. An array of bytes has no alignment, and every value is valid.
    unsafe { from.read_volatile() }
}

/// Copies from one registered region to another, the last bytes last like [`place`].
///
/// # Safety
/// `from` and `to` point to `len` bytes of a registered region or of a peer's memory. They stay mapped and may be
/// read and written.
#[inline]
pub(crate) unsafe fn copy(from: u64, to: u64, len: usize) {
    // SAFETY: the caller's promise. Both may be the same memory at two addresses, which `copy` permits.
    unsafe { copy_by(|from, to, len| std::ptr::copy(from, to, len), from, to, len) }
}

/// As [`copy`], for a part of a request that is longer than the processor's caches.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_long(from: u64, to: u64, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        copy_by(
            |from, to, len| long_copy::copy(from, to, len),
            from,
            to,
            len,
        )
    }
}

/// Copies all but the last bytes by `body`.
///
/// # Safety
/// As for [`copy`], whose memory is passed to `body`. No reference to it exists.
#[inline]
unsafe fn copy_by(body: impl FnOnce(*const u8, *mut u8, usize), from: u64, to: u64, len: usize) {
    let source = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let target = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let is_word = len >= 8 && (to + len as u64).is_multiple_of(8);
    let before = match (len, is_word) {
        (0, _) => return,
        (_, true) => len - 8,
        (_, false) => len - 1,
    };
    body(source, target, before);
    if is_word {
        // SAFETY: in bounds as above, and the target is aligned.
        unsafe {
            let word = source.add(before).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(target.add(before).cast()).store(word, Ordering::Release);
        }
    } else {
        // SAFETY: in bounds as above, and a byte is always aligned.
        unsafe {
            let last = source.add(before).read();
            AtomicU8::from_ptr(target.add(before)).store(last, Ordering::Release);
        }
    }
}

/// Splits off the last eight bytes if their destination is an aligned word.
fn body_and_word(addr: u64, bytes: &[u8]) -> Option<(&[u8], [u8; 8])> {
    let (head, word) = bytes.split_last_chunk::<8>()?;
    let end = addr.wrapping_add(bytes.len() as u64);
    end.is_multiple_of(align_of::<AtomicU64>() as u64)
        .then_some((head, *word))
}

/// Executes an atomic operation as one instruction of the processor, and returns the old value.
///
/// It is atomic with the program's own atomics on the word. It is atomic with other devices' operations only if those
/// go through the processor (`IBV_ATOMIC_GLOB` of ibv_query_device(3)).
///
/// # Safety
/// The operation's address is a multiple of eight, and points to eight bytes of a registered region with the right of
/// remote atomics. The memory table has been locked for reading since that was checked.
pub(crate) unsafe fn execute_atomic(operation: AtomicOperation) -> u64 {
    let place = std::ptr::with_exposed_provenance_mut::<u64>(operation.addr as usize);
    // SAFETY: the caller promises that `place` is aligned and valid for reads and writes. The program must access
    // such a word atomically, too (`ibv_reg_mr(3)`).
    let word = unsafe { AtomicU64::from_ptr(place) };
    match operation.kind {
        AtomicKind::CompareSwap { compare, swap } => {
            match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(original) | Err(original) => original,
            }
        }
        AtomicKind::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
    }
}

/// Copies a packet's payload into `out`, which has the payload's length.
///
/// # Safety
/// The segments are in registered regions, and the memory table has been locked for reading since that was checked.
pub(crate) unsafe fn gather(payload: &Payload<'_>, mut out: &mut [u8]) {
    match payload {
        Payload::Inline(bytes) => copy_prefix(out, bytes),
        Payload::Segments(segments) => {
            for Segment { addr, len } in *segments {
                let Some((here, rest)) =
                    std::mem::take(&mut out).split_at_mut_checked(*len as usize)
                else {
                    return;
                };
                let from = std::ptr::with_exposed_provenance::<u8>(*addr as usize);
                // SAFETY: the caller promises that `from` is readable for `len` bytes. `here` is a buffer of this
                // crate, so the two do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, here.as_mut_ptr(), here.len()) };
                out = rest;
            }
        }
    }
}

/// Copies a packet's payload to `addr`.
///
/// # Safety
/// As for [`gather`]. `addr` points to as many bytes as the payload has, and no one else writes to them.
pub(crate) unsafe fn gather_at(payload: &Payload<'_>, addr: u64) {
    let mut to = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    let mut one = |from: *const u8, len: usize| {
        // SAFETY: the caller promises that both are valid for `len` bytes. Registered memory never overlaps a ring.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, len);
            to = to.add(len);
        }
    };
    match payload {
        Payload::Inline(bytes) => one(bytes.as_ptr(), bytes.len()),
        Payload::Segments(segments) => {
            for Segment { addr, len } in *segments {
                let from = std::ptr::with_exposed_provenance::<u8>(*addr as usize);
                one(from, *len as usize);
            }
        }
    }
}

/// Copies the payload of a planned send to `addr`.
///
/// # Safety
/// As for [`gather_at`].
#[inline]
pub(crate) unsafe fn gather_planned(planned: &PlannedSend<'_>, addr: u64) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    let from = match planned.bytes {
        PlannedBytes::Memory(segment) => std::ptr::with_exposed_provenance(segment.addr as usize),
        PlannedBytes::Inline(bytes) => bytes.as_ptr(),
    };
    // SAFETY: the caller promises that both are valid for the payload. Registered memory never overlaps a ring.
    unsafe { std::ptr::copy_nonoverlapping(from, to, planned.send.len as usize) };
}

fn copy_prefix(out: &mut [u8], bytes: &[u8]) {
    let len = out.len().min(bytes.len());
    if let (Some(out), Some(bytes)) = (out.get_mut(..len), bytes.get(..len)) {
        out.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_placed_exactly() {
        let source: Vec<u8> = (1..=40).collect();
        for offset in 0..16 {
            for len in 0..=source.len() {
                let mut memory = [0u8; 64];
                let addr = memory.as_mut_ptr().expose_provenance() + offset;
                // SAFETY: at most 16 + 40 bytes of a 64-byte array owned by this test.
                unsafe { place(addr as u64, &source[..len]) };
                assert_eq!(memory[offset..offset + len], source[..len]);
                assert!(
                    memory[..offset]
                        .iter()
                        .chain(&memory[offset + len..])
                        .all(|b| *b == 0)
                );
            }
        }
    }

    #[test]
    fn atomics_agree_with_the_engines_definition() {
        let compare_swap = |compare, swap| AtomicKind::CompareSwap { compare, swap };
        for kind in [
            compare_swap(5, 9),
            compare_swap(6, 9),
            AtomicKind::FetchAdd { add: 7 },
            AtomicKind::FetchAdd { add: u64::MAX },
        ] {
            let word = AtomicU64::new(5);
            let addr = word.as_ptr().expose_provenance() as u64;
            // SAFETY: an aligned word owned by this test.
            let original = unsafe { execute_atomic(AtomicOperation { addr, kind }) };
            assert_eq!(original, 5);
            assert_eq!(word.load(Ordering::SeqCst), kind.apply(5), "{kind:?}");
        }
    }

    #[test]
    fn pieces_are_gathered_in_order() {
        let (left, right) = ([1u8, 2, 3], [4u8, 5]);
        let piece = |bytes: &[u8]| Segment {
            addr: bytes.as_ptr().expose_provenance() as u64,
            len: bytes.len() as u32,
        };
        let mut out = [0; 5];
        // SAFETY: both arrays are on this stack.
        unsafe { gather(&Payload::Segments(&[piece(&left), piece(&right)]), &mut out) };
        assert_eq!(out, [1, 2, 3, 4, 5]);
        // SAFETY: inline bytes are an ordinary slice.
        unsafe { gather(&Payload::Inline(&[9, 8]), &mut out[..2]) };
        assert_eq!(out[..2], [9, 8]);
    }
}
