//! The gate: a page of this process that every copy of another process into its program's memory goes through.
//!
//! Another process copies by one call of process_vm_writev(2) whose first piece is a byte of this page. The kernel
//! copies the pieces in order and stops at the first that is not mapped. So once the page is unmapped, no call that has
//! not passed it changes anything, however long its thread was stopped before it made the call. A signal stops a thread
//! only where a call begins or ends, so a stopped thread is not in the middle of a copy either.
//!
//! The address of the page is random, and far from where the kernel maps memory by itself. So a process that was given
//! the number of this one later, or a program that replaced this one, has nothing there: a copy that is meant for this
//! process ends at the gate.

#![allow(unsafe_code, reason = "mmap(2) of a page of its own")]

use std::ffi::c_void;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::rand::{GetRandomFlags, getrandom};

/// The addresses that a gate may have: 2^34 pages of 4 KiB, below programs, libraries and heaps.
const LOWEST: u64 = 1 << 32;
const END: u64 = 1 << 46;
/// Addresses tried, in case that one is in use.
const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Gate {
    addr: u64,
    len: usize,
}

impl Gate {
    /// Maps a gate. `None` if the kernel does not map a page there.
    pub(super) fn new() -> Option<Self> {
        (0..TRIES).find_map(|_| Self::at(random()?))
    }

    fn at(random: u64) -> Option<Self> {
        let len = rustix::param::page_size();
        let addr = LOWEST + random % (END - LOWEST);
        let addr = addr - addr % len as u64;
        let wanted = std::ptr::with_exposed_provenance_mut::<c_void>(usize::try_from(addr).ok()?);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping that replaces none.
        let page = unsafe { mmap_anonymous(wanted, len, rights, flags).ok()? };
        // Dropping it unmaps it.
        let gate = Self {
            addr: page.expose_provenance() as u64,
            len,
        };
        // Kernels before 4.17 may choose another address.
        if page != wanted {
            return None;
        }
        // SAFETY: the page just mapped. A forked child does not get it.
        unsafe { madvise(page, len, Advice::LinuxDontFork).ok()? };
        Some(gate)
    }

    pub(super) fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let page = std::ptr::with_exposed_provenance_mut(self.addr as usize);
        // SAFETY: the page mapped in `at`. Only the kernel writes to it, for other processes.
        let _ = unsafe { munmap(page, self.len) };
    }
}

fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty()).ok()?;
    (filled == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}
