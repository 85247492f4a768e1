//! Another process's memory, as far as it lets this one read and write it: its table of rights and its memory files.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_threads::lock::{Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;

use super::mapping::Mapping;
use super::memory_files::FILES_MAX;
use super::peer_rights::{PeerRights, Wanted};
use super::rights_layout::{HAZARDS, hazard_of};

/// All announcements are in use.
const ALL: u32 = (1 << HAZARDS) - 1;

/// What this process has of another.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    rights: PeerRights,
    /// The file of the ring to that process, which has this process's announcements.
    ring: Arc<Mapping>,
    /// Announcements in use, a bit each.
    announced: AtomicU32,
    files: RwLock<HashMap<u32, Mapping>>,
    asked: Mutex<Asked>,
}

/// Files that are missed.
#[derive(Debug, Default)]
struct Asked {
    ever: HashSet<u32>,
    now: Vec<u32>,
}

/// A request may be carried out, until this is dropped.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    memory: &'a PeerMemory,
    announcement: usize,
    addr: u64,
    _files: RwLockReadGuard<'a, HashMap<u32, Mapping>>,
}

/// Why a request cannot be carried out here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPassage {
    /// It is not allowed, or its memory is in no file: packets tell.
    Unknown,
    /// Its memory's file is not here, and is to be asked for.
    Missing,
}

impl PeerMemory {
    /// From the table of another process. `None` if it is none.
    pub(super) fn open(rights: BorrowedFd<'_>, ring: Arc<Mapping>) -> Result<Option<Self>, Errno> {
        let rights = PeerRights::open(rights)?;
        Ok(rights.map(|rights| Self {
            rights,
            ring,
            announced: AtomicU32::new(0),
            files: RwLock::default(),
            asked: Mutex::default(),
        }))
    }

    /// Has the other process's word that a request is allowed, and keeps it from taking that back for a moment.
    ///
    /// # Errors
    /// See [`NoPassage`].
    #[inline]
    pub(crate) fn enter(&self, wanted: &Wanted) -> Result<Passage<'_>, NoPassage> {
        let found = self.rights.find(wanted).ok_or(NoPassage::Unknown)?;
        let announcement = self.take_announcement().ok_or(NoPassage::Unknown)?;
        // From here on, dropping it ends the announcement.
        let mut passage = Passage {
            memory: self,
            announcement,
            addr: 0,
            _files: self.files.read(),
        };
        hazard_of(&self.ring, announcement).announce(found.announcement());
        let place = self.rights.check(found, wanted);
        let place = place.ok_or(NoPassage::Unknown)?;
        let Some(file) = passage._files.get(&place.file) else {
            self.ask(place.file);
            return Err(NoPassage::Missing);
        };
        // The table is another process's: what it says of its file need not be so.
        let end = place.offset.checked_add(wanted.len.into());
        if end.is_none_or(|end| end > file.len() as u64) {
            return Err(NoPassage::Unknown);
        }
        passage.addr = file.addr() + place.offset;
        Ok(passage)
    }

    #[inline]
    fn take_announcement(&self) -> Option<usize> {
        let mut taken = self.announced.load(Ordering::Relaxed);
        while taken != ALL {
            let free = taken.trailing_ones();
            let now = taken | 1 << free;
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            match self
                .announced
                .compare_exchange_weak(taken, now, success, failure)
            {
                Ok(_) => return Some(free as usize),
                Err(found) => taken = found,
            }
        }
        None
    }

    #[cold]
    fn ask(&self, file: u32) {
        let mut asked = self.asked.lock();
        if asked.ever.len() < FILES_MAX && asked.ever.insert(file) {
            asked.now.push(file);
        }
    }

    /// The files to ask for since this was last called.
    pub(super) fn take_asked(&self) -> Vec<u32> {
        std::mem::take(&mut self.asked.lock().now)
    }

    /// Files that could not be asked for, to be asked for later.
    pub(super) fn ask_again(&self, files: Vec<u32>) {
        self.asked.lock().now.extend(files);
    }

    /// Takes a file that was asked for.
    ///
    /// # Errors
    /// What the system refuses.
    pub(super) fn add_file(&self, number: u32, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let is_asked = self.asked.lock().ever.contains(&number);
        if let Some(mapping) = Mapping::open_for_all(file)?
            && is_asked
        {
            self.files.write().entry(number).or_insert(mapping);
        }
        Ok(())
    }
}

impl Passage<'_> {
    /// Address of the request's first byte in this process.
    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Passage<'_> {
    #[inline]
    fn drop(&mut self) {
        hazard_of(&self.memory.ring, self.announcement).end();
        let bit = 1 << self.announcement;
        self.memory.announced.fetch_and(!bit, Ordering::Release);
    }
}
