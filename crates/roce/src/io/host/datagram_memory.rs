//! Writes datagrams to the program's memory, which may be unmapped by then.
//!
//! Anyone can send a datagram at any time, and some programs (UCX) exit with receives posted in memory that they have
//! unmapped. An adapter would write to the pages that it pinned. Here the kernel copies from a memory file: it
//! reports unmapped memory as an error.

#![allow(unsafe_code, reason = "readv(2) to the program's addresses")]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use portolan_threads::fork;
use rustix::io::Errno;

use crate::io::host::memory_access;
use crate::io::net::shm::mapping::Mapping;

/// Bytes of the file: two datagrams of the largest MTU with their network headers.
const LEN: usize = 16 << 10;
/// Pieces in one system call (`UIO_MAXIOV` allows more).
const PIECES_MAX: usize = 64;

thread_local! {
    /// This thread's file, created at its first datagram, and the process that created it: a forked child must not use its
    /// parent's. The inner `None` means that it could not be created.
    static LANDING: RefCell<Option<(u32, Option<Landing>)>> = const { RefCell::new(None) };
}

struct Landing {
    mapping: Mapping,
    file: OwnedFd,
    pieces: Vec<libc::iovec>,
    filled: usize,
}

/// Copies the pieces of a datagram, each to its address.
///
/// # Safety
/// Each address points to at least that many bytes of a registered region that may be written. The memory table has
/// been locked for reading since that was checked.
pub(crate) unsafe fn place<'a>(mut pieces: impl Iterator<Item = (u64, &'a [u8])>) {
    // Fails while the thread ends.
    let _ = LANDING.try_with(|landing| {
        let mut landing = landing.borrow_mut();
        let process = fork::generation();
        if let Some((_, Some(parents))) = landing.take_if(|(owner, _)| *owner != process) {
            parents.leave();
        }
        let (_, made) = landing.get_or_insert_with(|| (process, Landing::new()));
        let Some(landing) = made else {
            return;
        };
        for (addr, bytes) in &mut pieces {
            if !landing.take(addr, bytes) {
                // SAFETY: the caller's promise.
                unsafe { memory_access::place(addr, bytes) };
            }
        }
        if let Err(errno) = landing.settle() {
            tracing::debug!(%errno, "a datagram's memory is not mapped");
        }
    });
    // Without a file.
    for (addr, bytes) in pieces {
        // SAFETY: the caller's promise.
        unsafe { memory_access::place(addr, bytes) };
    }
}

impl Landing {
    fn new() -> Option<Self> {
        let made = Mapping::create("portolan-datagram", LEN);
        let (mapping, file) = made
            .inspect_err(|errno| tracing::debug!(%errno, "a memory file for datagrams"))
            .ok()?;
        Some(Self {
            mapping,
            file,
            pieces: Vec::new(),
            filled: 0,
        })
    }

    /// Drops a parent's file without closing its number, which this process may use for another file by now.
    fn leave(self) {
        let _ = self.file.into_raw_fd();
    }

    /// Copies a piece to the file. Returns false if there is no room.
    fn take(&mut self, addr: u64, bytes: &[u8]) -> bool {
        if self.pieces.len() == PIECES_MAX || !self.mapping.copy_in(self.filled, bytes) {
            return false;
        }
        self.filled += bytes.len();
        self.pieces.push(libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(addr as usize),
            iov_len: bytes.len(),
        });
        true
    }

    /// Makes the kernel copy the collected pieces to their addresses.
    fn settle(&mut self) -> Result<(), Errno> {
        let filled = std::mem::take(&mut self.filled);
        if filled == 0 {
            self.pieces.clear();
            return Ok(());
        }
        let (file, pieces) = (self.file.as_raw_fd(), self.pieces.as_ptr());
        // SAFETY: `pieces` has `self.pieces.len()` elements. `place` requires that their memory is registered and may
        // be written; if it is not mapped, the call fails.
        let copied = unsafe { libc::preadv(file, pieces, self.pieces.len() as libc::c_int, 0) };
        self.pieces.clear();
        match usize::try_from(copied) {
            Ok(copied) if copied == filled => Ok(()),
            Ok(_) => Err(Errno::FAULT),
            Err(_) => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::FAULT))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    #[test]
    fn pieces_are_placed_and_unmapped_memory_is_skipped() {
        let mut near = [0_u8; 4];
        let at = near.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: four bytes owned by this test.
        unsafe { place([(at, &b"ab"[..]), (at + 2, b"cd")].into_iter()) };
        assert_eq!(&near, b"abcd");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which only this test uses and unmaps.
        let gone = unsafe {
            let page =
                mmap_anonymous(std::ptr::null_mut(), 4096, access, MapFlags::PRIVATE).unwrap();
            munmap(page, 4096).unwrap();
            page.expose_provenance() as u64
        };
        // SAFETY: the second address is unmapped, which is the point of the test.
        unsafe { place([(at, &b"ef"[..]), (gone, b"xx")].into_iter()) };
        assert_eq!(&near, b"efcd");
    }

    #[test]
    fn a_process_and_its_forked_child_place_their_own_datagrams() {
        // Both place in the thread that had a file before the fork.
        let round = |bytes: [u8; 64]| {
            let mut near = [0_u8; 64];
            let at = near.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: bytes owned by this test.
            unsafe { place([(at, &bytes[..])].into_iter()) };
            near == bytes
        };
        assert!(round([1; 64]));
        // SAFETY: the child places and exits. Its thread is the only one there, and it needs no lock of another.
        match unsafe { libc::fork() } {
            0 => {
                let is_right = (0..20_000).all(|_| round([2; 64]));
                // SAFETY: ends the child without the test's own ends.
                unsafe { libc::_exit(i32::from(!is_right)) }
            }
            child => {
                assert!(child > 0);
                let is_right = (0..20_000).all(|_| round([3; 64]));
                let mut status = 0;
                // SAFETY: a child of this test.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(is_right, "the parent has bytes of its child");
                assert_eq!(status, 0, "the child has bytes of its parent");
            }
        }
    }
}
