//! Creates, seals and maps memory files.

#![allow(
    unsafe_code,
    reason = "mmap(2), and memory that another process changes"
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use portolan_port_sharing::room::{file_size_limit, with_room};
use portolan_threads::with_signals_blocked;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Maximum length of another process's file.
const FILE_LEN_MAX: usize = 1 << 40;

/// Short files are mapped with all their pages: the first packets would wait for a page fault each, which takes as long as
/// several packets.
const WHOLE: MapFlags = MapFlags::POPULATE;
/// Long ones, whose memory may never be used, are mapped page by page.
const ON_USE: MapFlags = MapFlags::empty();

/// A mapped memory file.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is mapped as long as this value exists. It is accessed only by atomics and by copies through raw
// pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a file of `len` bytes that only this mapping can write to. Its size never changes. Its memory is
    /// allocated at once, so writing to it never fails.
    pub(crate) fn create(name: &str, len: usize) -> Result<(Self, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = with_room(|| memfd_create(name, flags))?;
        check_file_size(len)?;
        allocate(&file, 0, len as u64)?;
        let mapping = Self::map(file.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE, WHOLE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok((mapping, file))
    }

    /// Maps another process's file of `len` bytes for reading. `None` if it lacks the seals of
    /// [`create`](Self::create): its pages could vanish.
    pub(super) fn open(file: BorrowedFd<'_>, len: usize) -> Result<Option<Self>, Errno> {
        // Only memory files have seals.
        let Ok(seals) = fcntl_get_seals(file) else {
            return Ok(None);
        };
        let stat = fstat(file)?;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(stat.st_size) != Ok(len as u64) {
            return Ok(None);
        }
        Self::map(file, len, ProtFlags::READ, WHOLE).map(Some)
    }

    /// Creates a file of `len` bytes that every process with its descriptor can read and write. Its size never changes.
    /// Its memory is allocated on use.
    pub(super) fn create_for_all(name: &str, len: usize) -> Result<(Self, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = with_room(|| memfd_create(name, flags))?;
        check_file_size(len)?;
        ftruncate(&file, len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Self::map(file.as_fd(), len, access, ON_USE)?;
        Ok((mapping, file))
    }

    /// Maps another process's file for reading and writing. `None` if it lacks the seals of
    /// [`create_for_all`](Self::create_for_all): its pages could vanish.
    pub(super) fn open_for_all(file: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let Ok(seals) = fcntl_get_seals(file) else {
            return Ok(None);
        };
        let len = fstat(file)?.st_size;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| (1..=FILE_LEN_MAX).contains(len));
        match len {
            Some(len) if seals.contains(SealFlags::SHRINK) => {
                Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE, ON_USE).map(Some)
            }
            _ => Ok(None),
        }
    }

    #[inline]
    pub(super) fn addr(&self) -> u64 {
        self.at.as_ptr().expose_provenance() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Zeroes bytes of a mapping made by [`create_for_all`](Self::create_for_all).
    pub(super) fn clear(&self, offset: usize, len: usize) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if is_inside {
            // SAFETY: inside the mapping, which is writable.
            unsafe { ptr::write_bytes(self.at.as_ptr().add(offset), 0, len) };
        }
    }

    fn map(
        file: BorrowedFd<'_>,
        len: usize,
        access: ProtFlags,
        pages: MapFlags,
    ) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | pages;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        let at = NonNull::new(at.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { at, len })
    }

    /// A reference to the `T` at `offset`: atomics, for which every value is valid.
    ///
    /// # Safety
    /// `T` consists of atomics, and every process has a `T` there.
    #[inline]
    pub(super) unsafe fn at<T>(&self, offset: usize) -> Option<&T> {
        let end = offset.checked_add(size_of::<T>())?;
        let is_aligned = offset.is_multiple_of(align_of::<T>());
        // SAFETY: inside the mapping, which starts at a page and lives as long as `self`.
        (end <= self.len && is_aligned).then(|| unsafe { self.at.add(offset).cast().as_ref() })
    }

    /// Begins to fetch a line of memory into the caches. Only x86-64 processors do.
    #[inline]
    pub(super) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: inside the mapping. It changes nothing but the caches.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.as_ptr().add(offset).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Copies bytes out. Another process may change them meanwhile, so they may be inconsistent.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, to: &mut [u8]) -> bool {
        let is_inside = offset
            .checked_add(to.len())
            .is_some_and(|end| end <= self.len);
        if is_inside {
            // SAFETY: inside the mapping; `to` belongs to this process.
            unsafe {
                ptr::copy_nonoverlapping(self.at.as_ptr().add(offset), to.as_mut_ptr(), to.len())
            };
        }
        is_inside
    }

    /// Appends bytes to a vector. Another process may change them meanwhile, so they may be inconsistent.
    pub(super) fn append_to(&self, offset: usize, len: usize, to: &mut Vec<u8>) -> bool {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if is_inside {
            to.reserve(len);
            let spare = to.spare_capacity_mut();
            // SAFETY: inside the mapping; `to` belongs to this process and has room for the bytes.
            unsafe {
                let from = self.at.as_ptr().add(offset);
                ptr::copy_nonoverlapping(from, spare.as_mut_ptr().cast::<u8>(), len);
                to.set_len(to.len() + len);
            }
        }
        is_inside
    }

    /// As [`copy_out`](Self::copy_out), for a number of words that is known to the compiler.
    #[inline]
    pub(super) fn copy_words_out<const N: usize>(&self, offset: usize, to: &mut [u32; N]) -> bool {
        let is_inside = offset.checked_add(4 * N).is_some_and(|end| end <= self.len);
        if is_inside {
            // SAFETY: inside the mapping; every value is valid for the words.
            *to = unsafe {
                self.at
                    .as_ptr()
                    .add(offset)
                    .cast::<[u32; N]>()
                    .read_unaligned()
            };
        }
        is_inside
    }

    /// As [`copy_in`](Self::copy_in), for a number of words that is known to the compiler.
    #[inline]
    pub(super) fn copy_words_in<const N: usize>(&self, offset: usize, from: &[u32; N]) -> bool {
        let is_inside = offset.checked_add(4 * N).is_some_and(|end| end <= self.len);
        if is_inside {
            // SAFETY: inside the mapping, which is writable.
            unsafe {
                self.at
                    .as_ptr()
                    .add(offset)
                    .cast::<[u32; N]>()
                    .write_unaligned(*from)
            };
        }
        is_inside
    }

    /// Copies bytes in, to a mapping made by [`create`](Self::create). The caller is the only writer.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) -> bool {
        let is_inside = offset
            .checked_add(from.len())
            .is_some_and(|end| end <= self.len);
        if is_inside {
            // SAFETY: inside the mapping, which is writable; `from` belongs to this process.
            unsafe {
                ptr::copy_nonoverlapping(from.as_ptr(), self.at.as_ptr().add(offset), from.len())
            };
        }
        is_inside
    }
}

/// Allocates a part of a file, so that writing to it never fails.
pub(super) fn allocate(file: &OwnedFd, offset: u64, len: u64) -> Result<(), Errno> {
    // On older kernels every signal ends the call with EINTR, so a program's timer could interrupt every attempt.
    with_signals_blocked(|| retry_on_intr(|| fallocate(file, FallocateFlags::empty(), offset, len)))
}

/// Checks the limit of file sizes. Exceeding it would kill the process (SIGXFSZ, setrlimit(2)).
fn check_file_size(len: usize) -> Result<(), Errno> {
    match file_size_limit() {
        Some(limit) if limit < len as u64 => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value mapped it, and nothing uses it any more. The call cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_can_read_but_not_change_the_creators_data() {
        let (own, file) = Mapping::create("portolan-test", 8192).unwrap();
        let other = Mapping::open(file.as_fd(), 8192).unwrap().unwrap();
        assert!(own.copy_in(8190, b"hi"));
        assert!(!own.copy_in(8191, b"hi"));
        let mut bytes = [0; 2];
        assert!(other.copy_out(8190, &mut bytes));
        assert_eq!(&bytes, b"hi");
        assert!(!other.copy_out(8191, &mut bytes));
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
        assert!(
            Mapping::map(
                file.as_fd(),
                8192,
                ProtFlags::READ | ProtFlags::WRITE,
                ON_USE
            )
            .is_err()
        );
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
    }

    #[test]
    fn files_that_could_be_truncated_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("portolan-test", flags).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Mapping::open(file.as_fd(), 4096).unwrap().is_none());
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(Mapping::open(file.as_fd(), 8192).unwrap().is_none());
        assert!(Mapping::open(file.as_fd(), 4096).unwrap().is_some());
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(Mapping::open(pipe.as_fd(), 4096).unwrap().is_none());
    }
}
