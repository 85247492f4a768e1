//! The page in which a process shows the writers of its rings what it has read, and whether it sleeps.

#![allow(unsafe_code, reason = "atomics in memory that processes share")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::cursor::{Asleep, Head};
use super::mapping::Mapping;

/// Distance of the heads on a head page, and offset of the first: each has a cache line.
const LINE: usize = 64;
const HEAD_PAGE_LEN: usize = (LINE + LINE * PLACES).next_multiple_of(4096);
/// Number of writers that a head page has places for.
pub(super) const PLACES: usize = 256;

/// The reader's positions, which its writers read.
#[derive(Debug)]
pub(crate) struct HeadPage {
    mapping: Mapping,
    /// The file to pass to writers; `None` in a writer's copy.
    file: Option<OwnedFd>,
}

impl HeadPage {
    /// Creates this process's head page. Initially the reader counts as asleep.
    pub(crate) fn create() -> Result<Self, Errno> {
        let (mapping, file) = Mapping::create("portolan-heads", HEAD_PAGE_LEN)?;
        let head_page = Self {
            mapping,
            file: Some(file),
        };
        head_page.asleep().announce();
        Ok(head_page)
    }

    pub(super) fn open(file: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let mapping = Mapping::open(file, HEAD_PAGE_LEN)?;
        Ok(mapping.map(|mapping| Self {
            mapping,
            file: None,
        }))
    }

    /// The file to pass to writers.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    #[inline]
    pub(crate) fn asleep(&self) -> &Asleep {
        // SAFETY: the first word of every head page.
        let asleep = unsafe { self.mapping.at(0) };
        asleep.unwrap_or_else(|| unreachable!("a head page is longer"))
    }

    #[inline]
    pub(super) fn head(&self, place: u8) -> &Head {
        // SAFETY: every head page has its places there.
        let head = unsafe { self.mapping.at(LINE + LINE * usize::from(place)) };
        head.unwrap_or_else(|| unreachable!("a head page has 256 places"))
    }
}
