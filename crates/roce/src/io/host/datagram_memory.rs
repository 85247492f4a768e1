//! Datagrams into the program's memory, which may not be mapped any more.
//!
//! Nobody can tell who sends a datagram, or when, and programs end with receives posted whose memory they have unmapped
//! (UCX does). An adapter writes to the pages that it has pinned then. Here the kernel copies, from a memory file: where it
//! finds no memory it says so.

#![allow(unsafe_code, reason = "readv(2) to addresses of the program's")]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::io::host::memory_access;
use crate::io::net::shm::mapping::Mapping;

/// Bytes of the file: a datagram of the largest MTU with its network header, twice.
const LEN: usize = 16 << 10;
/// Pieces that a system call takes (`UIO_MAXIOV` has more).
const PIECES_MAX: usize = 64;

thread_local! {
    /// This thread's file, once it has received a datagram; the inner `None` if none can be made.
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
/// Each address is that of as many bytes of a registered region with the right to be written, and the memory table is
/// locked for reading since that was checked.
pub(crate) unsafe fn place<'a>(pieces: impl Iterator<Item = (u64, &'a [u8])>) {
    LANDING.with_borrow_mut(|landing| {
        let mut landing = landing.get_or_insert_with(Landing::new).as_mut();
        for (addr, bytes) in pieces {
            let is_taken = landing
                .as_mut()
                .is_some_and(|landing| landing.take(addr, bytes));
            if !is_taken {
                // SAFETY: by the caller's promise.
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

    /// Whether there was room for it.
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

    /// Has the kernel copy what was taken.
    fn settle(&mut self) -> Result<(), Errno> {
        let filled = std::mem::take(&mut self.filled);
        if filled == 0 {
            self.pieces.clear();
            return Ok(());
        }
        let (file, pieces) = (self.file.as_raw_fd(), self.pieces.as_ptr());
        // SAFETY: `pieces` are as many as their count. Their memory is registered and may be written, by the promise of
        // `place`; where it is not mapped the call fails.
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
