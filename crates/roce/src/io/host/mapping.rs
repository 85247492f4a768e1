//! Verifies that memory is mapped with the rights that a registration grants.
//!
//! An access to unmapped memory would kill the process with SIGSEGV in the progress thread, long after the wrong
//! registration. So registration asks the kernel first.

#![allow(unsafe_code, reason = "madvise(2) on memory of the caller")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::OnceLock;

use portolan_provider::verbs::Access;
use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

/// Faults in the pages of `addr..addr + length` with the rights that `access` implies.
///
/// # Errors
/// `BadMemory` if part of the range is not mapped, or not with those rights; `InvalidArgument` for
/// an empty range or one past the end of the address space.
pub(crate) fn verify(addr: u64, length: u64, access: Access) -> Result<()> {
    let step = Step::RegisterMemory;
    if length == 0 {
        return Err(Error::invalid(step, "length", "at least 1 byte", length));
    }
    let bad_memory = || Error::new(step, Cause::BadMemory { addr, len: length });
    let end = addr.checked_add(length).ok_or_else(bad_memory)?;
    let writable =
        access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let page = rustix::param::page_size() as u64;
    let first = addr - addr % page;
    let last = end.checked_next_multiple_of(page).ok_or_else(bad_memory)?;
    match populate(first, last, writable) {
        Populated::Done => Ok(()),
        Populated::NotMapped => Err(bad_memory()),
        Populated::Unknown => match is_mapped(addr, end, writable) {
            true => Ok(()),
            false => Err(bad_memory()),
        },
    }
}

enum Populated {
    Done,
    NotMapped,
    /// The kernel is older than 5.14, or does not answer for this kind of mapping.
    Unknown,
}

fn populate(first: u64, last: u64, writable: bool) -> Populated {
    let advice = if writable {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    let (Ok(start), Ok(len)) = (usize::try_from(first), usize::try_from(last - first)) else {
        return Populated::NotMapped;
    };
    loop {
        // SAFETY: populating only faults pages in, as a read or write of zero bytes would. It changes no byte and no
        // mapping.
        match unsafe { madvise(std::ptr::with_exposed_provenance_mut(start), len, advice) } {
            Ok(()) => return Populated::Done,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::INVAL | Errno::NOSYS) => return Populated::Unknown,
            Err(_) => return Populated::NotMapped,
        }
    }
}

/// Whether `/proc/self/maps` covers `addr..end` with the rights.
fn is_mapped(addr: u64, end: u64, writable: bool) -> bool {
    let Ok(maps) = File::open("/proc/self/maps") else {
        // The kernel cannot be asked in any way, so trust the caller.
        warn_unverified();
        return true;
    };
    covers(
        BufReader::new(maps)
            .lines()
            .map_while(std::result::Result::ok),
        addr,
        end,
        writable,
    )
}

fn covers(lines: impl Iterator<Item = String>, addr: u64, end: u64, writable: bool) -> bool {
    let mut covered_to = addr;
    for line in lines {
        let Some((start, stop, rights)) = parse_line(&line) else {
            continue;
        };
        if stop <= covered_to {
            continue;
        }
        let allowed = rights.starts_with('r') && (!writable || rights[1..].starts_with('w'));
        if start > covered_to || !allowed {
            return false;
        }
        covered_to = stop;
        if covered_to >= end {
            return true;
        }
    }
    false
}

/// `start-stop rights …` of a line of `/proc/self/maps` (proc_pid_maps(5)).
fn parse_line(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, stop) = words.next()?.split_once('-')?;
    let rights = words
        .next()
        .filter(|rights| rights.len() >= 2 && rights.is_ascii())?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(stop, 16).ok()?,
        rights,
    ))
}

fn warn_unverified() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        tracing::warn!(
            "memory is registered without verification: no MADV_POPULATE_READ and no /proc/self/maps"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    /// Pages that are unmapped on drop.
    struct Pages {
        start: *mut std::ffi::c_void,
        len: usize,
    }

    impl Pages {
        fn new(count: usize) -> Self {
            let len = count * rustix::param::page_size();
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
            let start = unsafe {
                mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE).unwrap()
            };
            Self { start, len }
        }

        fn page(&self, index: usize) -> u64 {
            (self.start.expose_provenance() + index * rustix::param::page_size()) as u64
        }

        fn protect(&self, index: usize, rights: MprotectFlags) {
            let page = rustix::param::page_size();
            // SAFETY: a page of this test's own mapping.
            unsafe { mprotect(self.start.byte_add(index * page), page, rights).unwrap() };
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: this test's own mapping, without remaining references.
            unsafe { munmap(self.start, self.len).unwrap() };
        }
    }

    fn is_bad(result: Result<()>) -> bool {
        matches!(
            result,
            Err(Error {
                cause: Cause::BadMemory { .. },
                ..
            })
        )
    }

    #[test]
    fn memory_is_accepted_only_with_its_protections_rights() {
        let pages = Pages::new(3);
        let size = rustix::param::page_size() as u64;
        verify(pages.page(0) + 1, 3 * size - 1, Access::LOCAL_WRITE).unwrap();
        pages.protect(1, MprotectFlags::READ);
        verify(pages.page(0), 3 * size, Access::REMOTE_READ).unwrap();
        verify(pages.page(0), size, Access::LOCAL_WRITE).unwrap();
        assert!(is_bad(verify(pages.page(0), size + 1, Access::LOCAL_WRITE)));
        pages.protect(1, MprotectFlags::empty());
        assert!(is_bad(verify(pages.page(0), 3 * size, Access::REMOTE_READ)));
    }

    #[test]
    fn a_closed_page_the_null_page_and_a_wrapping_range_are_refused() {
        assert!(is_bad(verify(0, 1, Access::empty())));
        assert!(is_bad(verify(u64::MAX - 10, 100, Access::empty())));
        assert!(is_bad(verify(u64::MAX - 10, 5, Access::empty())));
        let pages = Pages::new(1);
        pages.protect(0, MprotectFlags::empty());
        assert!(is_bad(verify(pages.page(0), 1, Access::empty())));
        assert!(verify(pages.page(0), 0, Access::empty()).is_err());
    }

    #[test]
    fn the_parsed_memory_map_agrees_with_the_kernels_answers() {
        let maps = [
            "1000-2000 rw-p 0 0:0 0",
            "2000-4000 r--p 0 0:0 0 /a b",
            "5000-6000 rw-p 0 0:0 0",
        ];
        let covers = |addr, end, writable| {
            super::covers(maps.iter().map(ToString::to_string), addr, end, writable)
        };
        assert!(covers(0x1000, 0x4000, false));
        assert!(covers(0x1800, 0x2000, true));
        assert!(!covers(0x1800, 0x2001, true));
        assert!(!covers(0x3000, 0x5800, false));
        assert!(!covers(0x0, 0x1800, false));
        assert!(covers(0x5fff, 0x6000, true));
        let pages = Pages::new(2);
        assert!(is_mapped(pages.page(0), pages.page(1), true));
        pages.protect(1, MprotectFlags::empty());
        assert!(!is_mapped(pages.page(0), pages.page(1) + 1, false));
    }
}
