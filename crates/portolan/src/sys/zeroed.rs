//! Zeroed memory of the library's own.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{NonNull, null_mut};

use portolan_provider::error::errno::ENOMEM;
use portolan_provider::{Cause, Error, Result, Step};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Alignment: a cache line, so that neighbours do not share one.
const ALIGNMENT: usize = 64;
/// From this length on memory is mapped: its pages take no room until they are written. An allocator writes zeroes to memory of
/// this alignment.
const MAPPED_FROM: usize = 1 << 16;

/// Zeroed memory, freed on drop. What is in it may change at any time: only addresses are handed out.
pub(super) struct Zeroed {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the allocation is owned, and no method accesses it.
unsafe impl Send for Zeroed {}
// SAFETY: as above.
unsafe impl Sync for Zeroed {}

impl Zeroed {
    /// Allocates `length` bytes, which must not be 0.
    pub(super) fn new(length: usize) -> Result<Self> {
        let start = match is_mapped(length) {
            // SAFETY: a mapping of its own, at an address that the kernel chooses.
            true => unsafe {
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                mmap_anonymous(null_mut(), length, protection, MapFlags::PRIVATE)
                    .map_or(null_mut(), |start| start.cast())
            },
            false => match layout(length) {
                // SAFETY: the length is not 0.
                Some(layout) if length > 0 => unsafe { alloc_zeroed(layout) },
                _ => null_mut(),
            },
        };
        let (call, errno) = ("mmap", ENOMEM);
        let start = NonNull::new(start)
            .ok_or_else(|| Error::new(Step::RegisterMemory, Cause::Os { call, errno }))?;
        Ok(Self { start, length })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }
}

impl Drop for Zeroed {
    fn drop(&mut self) {
        if is_mapped(self.length) {
            // SAFETY: mapped in `new` with this length, and whoever knew the address is gone.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        } else if let Some(layout) = layout(self.length) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

fn is_mapped(length: usize) -> bool {
    length >= MAPPED_FROM
}

fn layout(length: usize) -> Option<Layout> {
    Layout::from_size_align(length, ALIGNMENT).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_length_is_zeroed_and_aligned() {
        for length in [
            1,
            63,
            4096,
            MAPPED_FROM - 1,
            MAPPED_FROM,
            3 * MAPPED_FROM + 1,
        ] {
            let memory = Zeroed::new(length).unwrap();
            assert_eq!(memory.start().as_ptr() as usize % ALIGNMENT, 0);
            // SAFETY: the test's own memory of this length.
            let bytes =
                unsafe { std::slice::from_raw_parts(memory.start().as_ptr(), memory.len()) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{length}");
        }
        assert!(Zeroed::new(0).is_err());
    }
}
