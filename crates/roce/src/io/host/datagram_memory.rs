//! Writes datagrams to the program's memory, which may be unmapped by then.
//!
//! Anyone can send a datagram at any time, and some programs (UCX) exit with receives posted in memory that they have
//! unmapped. An adapter would write to the pages that it pinned. Here the kernel copies from a memory file: it
//! reports unmapped memory as an error.

#![allow(unsafe_code, reason = "readv(2) to the program's addresses")]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::io::host::memory_access;
use crate::io::net::shm::mapping::Mapping;

/// Bytes of the file: two datagrams of the largest MTU with their network headers.
const LEN: usize = 16 << 10;
/// Pieces in one system call (`UIO_MAXIOV` allows more).
const PIECES_MAX: usize = 64;

thread_local! {
    /// This thread's file, created at its first datagram. The inner `None` means that it could not be created.
    static LANDING: RefCell<Option<Option<Landing>>> = const { RefCell::new(None) };
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
pub(crate) unsafe fn place<'a>(pieces: impl Iterator<Item = (u64, &'a [u8])>) {
    LANDING.with_borrow_mut(|landing| {
        let mut landing = landing.get_or_insert_with(Landing::new).as_mut();
        for (addr, bytes) in pieces {
            let is_taken = landing
                .as_mut()
                .is_some_and(|landing| landing.take(addr, bytes));
            if !is_taken {
                // SAFETY: the caller's promise.
                unsafe { memory_access::place(addr, bytes) };
            }
        }
        if let Some(landing) = landing
            && let Err(errno) = landing.settle()
        {
            tracing::debug!(%errno, "a datagram's memory is not mapped");
        }
    });
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
}
