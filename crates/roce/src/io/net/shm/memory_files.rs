//! The memory that this process allocates in files, so that processes it trusts can map it.
//!
//! A file is divided into blocks whose lengths are powers of two. A freed block is reused for the next allocation of
//! its length; its pages return to the system at once. The files themselves stay, because other processes may have
//! them.

#![allow(unsafe_code, reason = "clears memory that was given back")]

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_provider::traits::HostMemory;
use portolan_threads::lock::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::Pid;

use super::mapping::{Mapping, allocate};

/// Maximum of files of this process, and of files of one peer that are mapped.
pub(super) const FILES_MAX: usize = 64;
/// Length of the first files. Only used pages take memory.
const FILE_LEN_MIN: u64 = 16 << 20;
/// Files of one length before the length doubles.
const FILES_PER_LEN: usize = 8;
/// Length of the shortest block: a cache line.
const BLOCK_MIN: u64 = 64;
/// Length of the longest block.
const BLOCK_MAX: u64 = 1 << 31;
/// Blocks of at least this length consist of whole pages.
const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct MemoryFiles {
    /// The process that created it. A forked child frees nothing: the memory belongs to its parent.
    owner: Pid,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    all: Vec<MemoryFile>,
    /// Free blocks, by the binary logarithm of their length.
    free: [Vec<Block>; 32],
}

#[derive(Debug)]
struct MemoryFile {
    mapping: Mapping,
    file: OwnedFd,
    /// Bytes of the file that are cut into blocks.
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    file: u32,
    offset: u64,
    len: u64,
}

/// Zeroed memory in a memory file.
#[derive(Debug)]
pub(crate) struct SharedPages {
    files: Arc<MemoryFiles>,
    block: Block,
    addr: u64,
    len: usize,
    held: AtomicBool,
}

impl MemoryFiles {
    pub(crate) fn new() -> Self {
        Self {
            owner: rustix::process::getpid(),
            files: Mutex::default(),
        }
    }

    /// Allocates zeroed memory. `None` if no file can provide it, or in a forked child.
    pub(crate) fn alloc(self: &Arc<Self>, len: usize) -> Option<Arc<SharedPages>> {
        let block_len = (len as u64).max(BLOCK_MIN).checked_next_power_of_two()?;
        if len == 0 || block_len > BLOCK_MAX || rustix::process::getpid() != self.owner {
            return None;
        }
        let mut files = self.files.lock();
        let free = files.free.get_mut(block_len.ilog2() as usize)?.pop();
        let block = match free {
            Some(block) => block,
            None => files.cut(block_len)?,
        };
        let file = files.all.get(block.file as usize)?;
        // Allocate the pages, so that writing to them never fails.
        let first = block.offset - block.offset % PAGE;
        let end = (block.offset + len as u64).next_multiple_of(PAGE);
        let there = allocate(&file.file, first, end - first);
        let addr = file.mapping.addr() + block.offset;
        if let Err(errno) = there {
            tracing::debug!(%errno, "memory in a file");
            files.put_back(block);
            return None;
        }
        drop(files);
        Some(Arc::new(SharedPages {
            files: Arc::clone(self),
            block,
            addr,
            len,
            held: AtomicBool::new(false),
        }))
    }

    /// Calls `with` with a file, to be sent to a process that may map it.
    pub(super) fn with_file<R>(
        &self,
        number: u32,
        hand_over: impl FnOnce(BorrowedFd<'_>) -> R,
    ) -> Option<R> {
        let files = self.files.lock();
        let file = files.all.get(number as usize)?;
        Some(hand_over(file.file.as_fd()))
    }

    fn free(&self, block: Block) {
        if rustix::process::getpid() != self.owner {
            return;
        }
        let mut files = self.files.lock();
        let Some(file) = files.all.get(block.file as usize) else {
            return;
        };
        if block.len < PAGE {
            file.mapping
                .clear(block.offset as usize, block.len as usize);
        } else {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(errno) = fallocate(&file.file, hole, block.offset, block.len) {
                // A block that is not zeroed must not be reused.
                tracing::debug!(%errno, "memory in a file is not given back");
                return;
            }
        }
        files.put_back(block);
    }
}

impl Files {
    /// Cuts a new block from a file with room, or from a new file.
    fn cut(&mut self, len: u64) -> Option<Block> {
        let has_room = |file: &MemoryFile| {
            let offset = file.used.next_multiple_of(len);
            offset + len <= file.mapping.len() as u64
        };
        let number = match self.all.iter().position(has_room) {
            Some(number) => number,
            None => self.add(len)?,
        };
        let file = self.all.get_mut(number)?;
        let offset = file.used.next_multiple_of(len);
        file.used = offset + len;
        Some(Block {
            file: u32::try_from(number).ok()?,
            offset,
            len,
        })
    }

    fn add(&mut self, len: u64) -> Option<usize> {
        let number = self.all.len();
        if number == FILES_MAX {
            return None;
        }
        let file_len = (FILE_LEN_MIN << (number / FILES_PER_LEN)).max(len);
        let made = Mapping::create_for_all("portolan-memory", usize::try_from(file_len).ok()?);
        let (mapping, file) = made
            .inspect_err(|errno: &Errno| tracing::debug!(%errno, "a memory file"))
            .ok()?;
        self.all.push(MemoryFile {
            mapping,
            file,
            used: 0,
        });
        Some(number)
    }

    fn put_back(&mut self, block: Block) {
        if let Some(free) = self.free.get_mut(block.len.ilog2() as usize) {
            free.push(block);
        }
    }
}

impl SharedPages {
    /// The file's number and the offset in it.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.block.file, self.block.offset)
    }

    /// Keeps the memory: a stopped process may be in the middle of a copy.
    pub(super) fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }
}

impl portolan_provider::sealed::Sealed for SharedPages {}

impl HostMemory for SharedPages {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    fn as_arc_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        self.files.free(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all bytes of it are `byte`; all are `then` after that.
    fn replace(pages: &SharedPages, byte: u8, then: u8) -> bool {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(pages.addr as usize);
        // SAFETY: this test's own memory; nothing else refers to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, pages.len) };
        let all = bytes.iter().all(|found| *found == byte);
        bytes.fill(then);
        all
    }

    #[test]
    fn memory_is_zeroed_also_where_it_was_used_before_and_never_handed_out_twice() {
        let files = Arc::new(MemoryFiles::new());
        for len in [1, 64, 65, 4095, 4096, 5000, 1 << 20, 17 << 20] {
            for _ in 0..3 {
                let all = [0, 1, 2].map(|_| files.alloc(len).unwrap());
                for (number, pages) in (1..).zip(&all) {
                    assert!(replace(pages, 0, number), "{len}");
                    assert!(pages.addr.is_multiple_of(64));
                }
                for (number, pages) in (1..).zip(&all) {
                    assert!(replace(pages, number, number), "{len}");
                }
            }
        }
        assert!(files.files.lock().all.len() < 8, "blocks are used again");
    }

    #[test]
    fn signals_do_not_keep_memory_from_being_allocated() {
        extern "C" fn ignore(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = ignore;
        // SAFETY: the handler does nothing, and no other test uses the signal.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        // SAFETY: `pthread_self` has no preconditions.
        let this = unsafe { libc::pthread_self() };
        let is_over = AtomicBool::new(false);
        let files = Arc::new(MemoryFiles::new());
        let there = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: the target thread exists, because it joins this one.
                    unsafe { libc::pthread_kill(this, libc::SIGUSR2) };
                }
            });
            let there = (0..100).filter(|_| files.alloc(4 << 20).is_some()).count();
            is_over.store(true, Ordering::Relaxed);
            there
        });
        assert_eq!(there, 100);
    }

    #[test]
    fn memory_outside_of_every_file_is_not_handed_out() {
        let files = Arc::new(MemoryFiles::new());
        assert!(files.alloc(0).is_none());
        assert!(files.alloc((1 << 31) + 1).is_none());
        assert!(files.with_file(0, |_| ()).is_none());
    }
}
