//! The memory of another process that this one may access: its table of rights and its memory files.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

use portolan_threads::lock::Mutex;
use rustix::io::Errno;

use super::hazard::Hazard;
use super::mapping::Mapping;
use super::memory_files::FILES_MAX;
use super::peer_rights::{Found, PeerRights, Wanted};
use super::program_memory::{NotCopied, Process, WhyUnreadable};
use super::pull::{self, SLOTS};
use super::rights_layout::{HAZARDS, PROGRAM, PULLS, hazard_of};

/// The files of one other process.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    rights: PeerRights,
    process: Process,
    /// The file of the ring to that process, which contains this process's announcements.
    ring: Arc<Mapping>,
    /// By their numbers. Once mapped, a file stays.
    files: [OnceLock<Mapping>; FILES_MAX],
    pulls: Mutex<Pulls>,
    asked: Mutex<Asked>,
}

/// Files that are needed but not mapped yet.
#[derive(Debug, Default)]
struct Asked {
    ever: HashSet<u32>,
    now: Vec<u32>,
}

/// Requests that wait for the other process.
#[derive(Debug, Default)]
struct Pulls {
    /// A bit for each place in use.
    taken: u64,
    why_not: Option<WhyUnreadable>,
}

/// Permission to execute a request, until dropped.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    addr: u64,
    _announced: Announced<'a>,
}

/// The use of a right is announced, until dropped.
#[derive(Debug)]
pub(crate) struct Announced<'a>(&'a Hazard);

/// Why a request cannot be executed directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPassage {
    /// It is not allowed, or its memory is not in a file. Packets decide.
    Unknown,
    /// The file of its memory is not mapped yet and must be requested.
    Missing,
    /// The memory is the program's: see [`PeerMemory::read_program`] and [`PeerMemory::write_program`].
    Program,
}

impl PeerMemory {
    /// Opens the table of another process. `None` if the file is not a table.
    pub(super) fn open(
        rights: BorrowedFd<'_>,
        ring: Arc<Mapping>,
        pid: u32,
    ) -> Result<Option<Self>, Errno> {
        let rights = PeerRights::open(rights)?;
        Ok(rights.map(|rights| Self {
            process: Process::new(pid, rights.testimony()),
            rights,
            ring,
            files: [const { OnceLock::new() }; FILES_MAX],
            pulls: Mutex::default(),
            asked: Mutex::default(),
        }))
    }

    /// Whether the other process accepts requests without packets at all: it has no tap.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.rights.is_open()
    }

    /// Whether a key's memory is the other process's program's. Then that process executes atomics on it.
    #[inline]
    pub(crate) fn is_of_program(&self, rkey: u32) -> bool {
        self.rights.is_of_program(rkey)
    }

    /// Checks that the other process allows a request, and announces the use, which delays a withdrawal.
    ///
    /// # Errors
    /// See [`NoPassage`].
    #[inline]
    pub(crate) fn enter(&self, wanted: &Wanted) -> Result<Passage<'_>, NoPassage> {
        let found = self.rights.find(wanted).ok_or(NoPassage::Unknown)?;
        let announced = self.announce(found).ok_or(NoPassage::Unknown)?;
        let place = self.rights.check(found, wanted);
        let place = place.ok_or(NoPassage::Unknown)?;
        if place.file == PROGRAM {
            return Err(NoPassage::Program);
        }
        // The table belongs to another process, so its numbers may be of no file, and its offsets may exceed the file.
        let file = self.file(place.file).ok_or(NoPassage::Unknown)?;
        let Some(file) = file.get() else {
            self.ask(place.file);
            return Err(NoPassage::Missing);
        };
        let end = place.offset.checked_add(wanted.len.into());
        if end.is_none_or(|end| end > file.len() as u64) {
            return Err(NoPassage::Unknown);
        }
        Ok(Passage {
            addr: file.addr() + place.offset,
            _announced: announced,
        })
    }

    #[inline]
    fn file(&self, number: u32) -> Option<&OnceLock<Mapping>> {
        self.files.get(usize::try_from(number).ok()?)
    }

    /// Announces the use of a right. `None` if too many threads use rights.
    #[inline]
    fn announce(&self, found: Found) -> Option<Announced<'_>> {
        self.announce_word(found.announcement())
    }

    /// Announces that this process copies what the other one asks for, before it looks whether that one still waits.
    /// `None` if too many threads use rights.
    pub(crate) fn announce_pull(&self, id: u64) -> Option<Announced<'_>> {
        self.announce_word(PULLS | id)
    }

    #[inline]
    fn announce_word(&self, word: u64) -> Option<Announced<'_>> {
        let mut hazards = (0..HAZARDS).map(|index| hazard_of(&self.ring, index));
        let hazard = hazards.find(|hazard| hazard.announce(word))?;
        Some(Announced(hazard))
    }

    /// Reads a range of a request from the memory of the other process's program, into pieces of this process's
    /// memory, each an address and a length. The other process allows the request before and after the copy.
    ///
    /// # Errors
    /// Packets decide. The pieces' contents are undefined.
    ///
    /// # Safety
    /// The pieces are mapped and may be written to.
    #[allow(unsafe_code, reason = "copies to registered memory")]
    pub(crate) unsafe fn read_program(
        &self,
        wanted: &Wanted,
        range: Range<u32>,
        pieces: impl Iterator<Item = (u64, usize)>,
    ) -> Result<(), NotCopied> {
        let found = self.rights.find(wanted).ok_or(NotCopied)?;
        let allowed = || {
            let version = self.rights.version(found)?;
            let place = self.rights.check(found, wanted)?;
            (place.file == PROGRAM).then_some((version, place))
        };
        let before = allowed().ok_or(NotCopied)?;
        let from = before.1.offset.checked_add(range.start.into());
        // SAFETY: the caller's promise.
        unsafe {
            let from = from.ok_or(NotCopied)?;
            let from = [(from, range.len())];
            self.process.read(from.into_iter(), range.len(), pieces)?;
        }
        // After the copy: the withdrawal comes before any other use of the memory.
        fence(Ordering::SeqCst);
        match allowed() == Some(before) {
            true => Ok(()),
            false => Err(NotCopied),
        }
    }

    /// Writes pieces of this process's memory to a range of a request in the memory of the other process's program.
    /// The use is announced, which delays a withdrawal, and the copy goes through the other process's gate.
    ///
    /// # Errors
    /// Packets decide. The contents of the range are undefined.
    pub(crate) fn write_program(
        &self,
        wanted: &Wanted,
        range: Range<u32>,
        pieces: impl Iterator<Item = (u64, usize)>,
    ) -> Result<(), NotCopied> {
        // Before the check. So a gate that is opened after a withdrawal is not used with a right from before it.
        let gate = self.rights.gate();
        let found = self.rights.find(wanted).ok_or(NotCopied)?;
        let _announced = self.announce(found).ok_or(NotCopied)?;
        let place = self.rights.check(found, wanted);
        let place = place
            .filter(|place| place.file == PROGRAM)
            .ok_or(NotCopied)?;
        let to = place.offset.checked_add(range.start.into());
        self.process
            .write(gate, pieces, to.ok_or(NotCopied)?, range.len())
    }

    /// Takes a place to show that a request waits for the other process, and a number for it. `None` if too many wait.
    pub(crate) fn begin_pull(&self) -> Option<(u32, u64)> {
        let mut slots = self.pulls.lock();
        let slot = (!slots.taken).trailing_zeros();
        if slot as usize >= SLOTS {
            return None;
        }
        slots.taken |= 1 << slot;
        let id = pull::next_id();
        pull::show(&self.ring, slot, id);
        Some((slot, id))
    }

    /// Gives the place back. The other process does not begin to copy after this.
    pub(crate) fn end_pull(&self, slot: u32) {
        pull::hide(&self.ring, slot);
        self.pulls.lock().taken &= !(1 << slot);
    }

    /// Notes that the other process cannot read this one's memory.
    pub(crate) fn cannot_pull(&self, why: WhyUnreadable) {
        self.pulls.lock().why_not = Some(why);
    }

    /// Why the other process cannot read this one's memory, if it has said so.
    pub(crate) fn why_not_pulled(&self) -> Option<WhyUnreadable> {
        self.pulls.lock().why_not
    }

    /// Why the memory of the other process's program cannot be read, if so.
    pub(crate) fn why_unreadable(&self) -> Option<WhyUnreadable> {
        self.process.why_unreadable()
    }

    /// Why the memory of the other process's program cannot be written to, if so.
    pub(crate) fn why_unwritable(&self) -> Option<WhyUnreadable> {
        self.process.why_unwritable()
    }

    #[cold]
    fn ask(&self, file: u32) {
        let mut asked = self.asked.lock();
        if asked.ever.len() < FILES_MAX && asked.ever.insert(file) {
            asked.now.push(file);
        }
    }

    /// Returns the files to request since the last call.
    pub(super) fn take_asked(&self) -> Vec<u32> {
        std::mem::take(&mut self.asked.lock().now)
    }

    /// Returns files to the list that could not be requested.
    pub(super) fn ask_again(&self, files: Vec<u32>) {
        self.asked.lock().now.extend(files);
    }

    /// Adds a requested file.
    ///
    /// # Errors
    /// The system's error if the file cannot be mapped.
    pub(super) fn add_file(&self, number: u32, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let is_asked = self.asked.lock().ever.contains(&number);
        if let Some(mapping) = Mapping::open_for_all(file)?
            && is_asked
            && let Some(file) = self.file(number)
        {
            // If it is mapped already, the first mapping stays.
            let _ = file.set(mapping);
        }
        Ok(())
    }
}

impl Passage<'_> {
    /// The request's start address in this process.
    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for Announced<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}
