//! Detects that this process is a forked child, which must not use its parent's resources.
//!
//! A child of `fork` inherits memory and descriptors, but no threads. If parent and child used one device or one
//! connection, each would take half of the other's traffic. The guard is a page that the kernel zeroes in the child
//! (`MADV_WIPEONFORK`, Linux 4.14). Reading it costs one load; asking for the process id would cost a system call.

#![allow(unsafe_code, reason = "a mapping of its own")]

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page with the process's number. One mapping serves a process and its children; each child first reads zeros from it.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The last number that was given in this process or an ancestor.
static LAST: AtomicU32 = AtomicU32::new(0);
/// That of the first process of a line.
const FIRST: u32 = 1;
/// On the page while a thread takes the process's number.
const CLAIMED: u32 = u32::MAX;
/// Replaces the page if the kernel cannot wipe one on fork. Never written.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);

/// A number of this process that none of its ancestors has.
#[inline]
pub fn generation() -> u32 {
    // SAFETY: null, a page that stays mapped, or a static.
    match unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        Some(page) => match page.load(Ordering::Acquire) {
            0 | CLAIMED => first_of_process(page),
            number => number,
        },
        None => first_of_process(page()),
    }
}

/// Whether an ancestor of this process has asked for its number: pointers that this process finds may be that one's.
pub fn is_child() -> bool {
    generation() != FIRST && LAST.load(Ordering::Relaxed) > FIRST
}

#[cold]
fn first_of_process(page: &AtomicU32) -> u32 {
    if ptr::eq(page, &NO_PAGE) {
        return std::process::id();
    }
    loop {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match page.compare_exchange(0, CLAIMED, success, failure) {
            Ok(_) => {
                // Taken before it is written: a child forked in between takes another number.
                let number = LAST.fetch_add(1, Ordering::AcqRel) + 1;
                page.store(number, Ordering::Release);
                return number;
            }
            // Another thread is between those two steps.
            Err(CLAIMED) => std::thread::yield_now(),
            Err(number) => return number,
        }
    }
}

/// Maps the page. A fork at any moment in between leaves the child without it or with it.
fn page() -> &'static AtomicU32 {
    let own = map().unwrap_or_else(|| (&raw const NO_PAGE).cast_mut());
    match PAGE.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: a mapping that stays from here on, aligned and zeroed by the kernel; or a static.
        Ok(_) => unsafe { &*own },
        Err(faster) => {
            // One page is lost, once.
            // SAFETY: as above: what was published stays.
            unsafe { &*faster }
        }
    }
}

fn map() -> Option<*mut AtomicU32> {
    // Miri has no fork.
    if cfg!(miri) {
        return None;
    }
    // SAFETY: it asks for a number.
    let length = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let length = usize::try_from(length).ok()?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
    let mapped = unsafe { libc::mmap(null_mut(), length, rights, kind, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the mapping just made.
    let wiped = unsafe { libc::madvise(mapped, length, libc::MADV_WIPEONFORK) };
    (wiped == 0).then_some(mapped.cast())
}

/// A mark that holds in the process that made it, and not in its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard {
    generation: u32,
}

impl ForkGuard {
    /// Marks this process as the owner.
    #[expect(
        clippy::new_without_default,
        reason = "the call identifies the process"
    )]
    pub fn new() -> Self {
        let generation = generation();
        Self { generation }
    }

    /// Whether this process created the guard.
    #[inline]
    pub fn is_owner(self) -> bool {
        self.is_surely_owner() || self.is_owner_by_number()
    }

    /// As [`is_owner`](Self::is_owner), without a call of another function: it may be the owner although this is false.
    #[inline(always)]
    pub fn is_surely_owner(self) -> bool {
        // SAFETY: null, a page that stays mapped, or a static.
        let page = unsafe { PAGE.load(Ordering::Acquire).as_ref() };
        // No process has the number of a page without one.
        let is_same = |page: &AtomicU32| page.load(Ordering::Acquire) == self.generation;
        page.is_some_and(is_same)
    }

    #[cold]
    fn is_owner_by_number(self) -> bool {
        self.generation == generation()
    }
}
