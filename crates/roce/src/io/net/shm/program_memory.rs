//! Memory that another process's program owns, which lies in no memory file: the kernel copies from it
//! (process_vm_readv(2), process_vm_writev(2)).
//!
//! What was read is thrown away if the right was withdrawn meanwhile. A write first passes the other process's
//! [gate](super::gate), which that process closes if it cannot wait for the writer.
//!
//! A process number may be used again, and a process may replace its program. So each process has a random
//! [`Witness`] at an address that it tells, and each read also reads the witness: one call of process_vm_readv(2)
//! reads one address space. For writes, the random address of the gate does the same.

#![allow(
    unsafe_code,
    reason = "mmap(2) of a page of its own, process_vm_readv(2) and process_vm_writev(2)"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::rand::{GetRandomFlags, getrandom};

/// Words of a witness.
const WORDS: usize = 2;
/// Length of a witness's mapping. The kernel rounds it up to a page.
const LEN: usize = 4096;
/// Maximum of pieces of this process's memory in one copy. Requests of more use packets.
pub(crate) const PIECES_MAX: usize = 16;
/// Bytes of a write that are written last, for a program that waits for them to change.
const LAST: usize = 8;
/// Whether the other process sees the kernel's copies of two pieces of this process's memory in their order. Elsewhere
/// the pieces of the other process's memory are apart, which costs more.
const COPIES_IN_ORDER: bool = cfg!(target_arch = "x86_64");

/// Where a process's witness is, and what it says. It stands in memory that other processes read.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Testimony {
    /// 0 if the process has no witness.
    at: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Random words in this process's memory. A forked child finds zeros there.
#[derive(Debug)]
pub(crate) struct Witness {
    page: NonNull<[u64; WORDS]>,
    words: [u64; WORDS],
}

// SAFETY: the page is written only when it is created.
unsafe impl Send for Witness {}
// SAFETY: as above.
unsafe impl Sync for Witness {}

/// Another process, whose memory this one may read and write.
#[derive(Debug)]
pub(crate) struct Process {
    pid: libc::pid_t,
    at: u64,
    words: [u64; WORDS],
    /// Why its memory cannot be read, as a number; 0 if it can.
    why_not: AtomicU8,
    /// Why its memory cannot be written to.
    why_unwritable: AtomicU8,
}

/// Why a process cannot read another one's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyUnreadable {
    /// The other process belongs to another user.
    #[error("another user's process")]
    OtherUser,
    /// The other process is in another process namespace.
    #[error("a process of another process namespace")]
    OtherNamespace,
    /// A security module such as Yama (kernel.yama.ptrace_scope) forbids it, or the process is not dumpable.
    #[error("ptrace is not permitted (kernel.yama.ptrace_scope, prctl(PR_SET_DUMPABLE))")]
    NoPtrace,
    /// The system call is missing: a seccomp filter refuses it.
    #[error("the system call process_vm_readv or process_vm_writev is refused (seccomp)")]
    NoSystemCall,
    /// The other process has no witness or no gate: its kernel cannot keep them from forked children.
    #[error("the other process cannot be recognized")]
    NoWitness,
}

impl WhyUnreadable {
    const ALL: [Self; 5] = [
        Self::OtherUser,
        Self::OtherNamespace,
        Self::NoPtrace,
        Self::NoSystemCall,
        Self::NoWitness,
    ];

    pub(super) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    pub(super) fn number(self) -> u8 {
        self as u8 + 1
    }
}

/// The copy did not take place, or its bytes are not those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotCopied;

impl Witness {
    /// Creates this process's witness. `None` if the kernel cannot keep it from forked children (before Linux 4.14).
    pub(crate) fn new() -> Option<Self> {
        let mut random = [0; 8 * WORDS];
        let filled = getrandom(&mut random[..], GetRandomFlags::empty()).ok()?;
        if filled < random.len() {
            return None;
        }
        let (words, _) = random.as_chunks();
        let words = [0, 1].map(|word: usize| u64::from_ne_bytes(words[word]));
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, rights, MapFlags::PRIVATE).ok()? };
        let witness = Self {
            page: NonNull::new(page.cast())?,
            words,
        };
        // SAFETY: the mapping just made.
        unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork).ok()? };
        // SAFETY: in the mapping, which is aligned to a page.
        unsafe { witness.page.write(words) };
        Some(witness)
    }

    /// Tells other processes about this one's witness.
    pub(crate) fn testify(&self, to: &Testimony) {
        for (word, told) in self.words.iter().zip(&to.words) {
            told.store(*word, Ordering::Relaxed);
        }
        let at = self.page.as_ptr().expose_provenance() as u64;
        to.at.store(at, Ordering::Release);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nothing refers to any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), LEN) };
    }
}

impl Process {
    /// The process with a number, 0 if it is not visible, that has told about its witness. Tries to read it once.
    pub(crate) fn new(pid: u32, testimony: &Testimony) -> Self {
        let words = [0, 1].map(|word: usize| testimony.words[word].load(Ordering::Relaxed));
        let process = Self {
            pid: libc::pid_t::try_from(pid).unwrap_or_default(),
            at: testimony.at.load(Ordering::Acquire),
            words,
            why_not: AtomicU8::new(0),
            why_unwritable: AtomicU8::new(0),
        };
        let why = match (process.pid, process.at) {
            (0, _) => Some(WhyUnreadable::OtherNamespace),
            (_, 0) => Some(WhyUnreadable::NoWitness),
            _ => None,
        };
        match why {
            Some(why) => process.why_not.store(why.number(), Ordering::Relaxed),
            None => {
                // SAFETY: no pieces.
                let _ = unsafe { process.read([].into_iter(), 0, [].into_iter()) };
            }
        }
        process
    }

    /// Why its memory cannot be read, if so.
    pub(crate) fn why_unreadable(&self) -> Option<WhyUnreadable> {
        WhyUnreadable::of_number(self.why_not.load(Ordering::Relaxed))
    }

    /// Why its memory cannot be written to, if so.
    pub(crate) fn why_unwritable(&self) -> Option<WhyUnreadable> {
        let why = self.why_unwritable.load(Ordering::Relaxed);
        self.why_unreadable().or(WhyUnreadable::of_number(why))
    }

    /// Copies `len` bytes from pieces of this process's memory, each an address and a length, to the other process's
    /// memory at `to`, after one byte to its gate. The last bytes are written last.
    ///
    /// # Errors
    /// The bytes in the other process's memory are undefined.
    pub(super) fn write(
        &self,
        gate: u64,
        pieces: impl Iterator<Item = (u64, usize)>,
        to: u64,
        len: usize,
    ) -> Result<(), NotCopied> {
        if self.why_unwritable().is_some() {
            return Err(NotCopied);
        }
        if gate == 0 {
            self.cannot_write(WhyUnreadable::NoWitness);
            return Err(NotCopied);
        }
        let byte = 0u8;
        let own = ((&raw const byte).expose_provenance() as u64, 1);
        let body = len - len.min(LAST);
        let pieces = [own].into_iter().chain(parted(pieces, body));
        let (local, local_count) = list::<{ PIECES_MAX + 2 }>(pieces)?;
        let apart = if COPIES_IN_ORDER { len } else { body };
        let to = [(gate, 1)]
            .into_iter()
            .chain(parted([(to, len)].into_iter(), apart));
        let (remote, remote_count) = list::<3>(to)?;
        // SAFETY: the kernel reads the two lists and the local pieces: an address that is not mapped is an error. In
        // this process's memory, it writes nothing.
        let written = unsafe {
            libc::process_vm_writev(
                self.pid,
                local.as_ptr(),
                local_count as libc::c_ulong,
                remote.as_ptr(),
                remote_count as libc::c_ulong,
                0,
            )
        };
        if usize::try_from(written) == Ok(len + 1) {
            return Ok(());
        }
        if let Some(why) = why_of(written) {
            self.cannot_write(why);
        }
        Err(NotCopied)
    }

    fn cannot_write(&self, why: WhyUnreadable) {
        self.why_unwritable.store(why.number(), Ordering::Relaxed);
    }

    /// Copies `len` bytes from pieces of the other process's memory to pieces of this process's, each an address and a
    /// length, which have `len` bytes together.
    ///
    /// # Errors
    /// The bytes in this process's memory are undefined.
    ///
    /// # Safety
    /// The pieces are mapped and may be written to.
    pub(crate) unsafe fn read(
        &self,
        from: impl Iterator<Item = (u64, usize)>,
        len: usize,
        pieces: impl Iterator<Item = (u64, usize)>,
    ) -> Result<(), NotCopied> {
        if self.why_unreadable().is_some() {
            return Err(NotCopied);
        }
        let mut words = [0u64; WORDS];
        let own = (
            words.as_mut_ptr().expose_provenance() as u64,
            size_of_val(&words),
        );
        let (local, local_count) = list::<{ PIECES_MAX + 1 }>(pieces.chain([own]))?;
        let (remote, remote_count) = list::<{ PIECES_MAX + 1 }>(from.chain([(self.at, own.1)]))?;
        // SAFETY: the kernel reads the two lists. It writes only to the local pieces: memory that the caller may write,
        // and `words`. The other process's memory is only read, and an address that is not mapped there is an error.
        let read = unsafe {
            libc::process_vm_readv(
                self.pid,
                local.as_ptr(),
                local_count as libc::c_ulong,
                remote.as_ptr(),
                remote_count as libc::c_ulong,
                0,
            )
        };
        if usize::try_from(read) == Ok(len + own.1) {
            // SAFETY: a local. The kernel has written it through another pointer.
            let words = unsafe { std::ptr::read_volatile(&raw const words) };
            return match words == self.words {
                true => Ok(()),
                false => Err(NotCopied),
            };
        }
        if let Some(why) = why_of(read) {
            self.why_not.store(why.number(), Ordering::Relaxed);
        }
        Err(NotCopied)
    }
}

/// What the result of a failed call says about all later calls.
fn why_of(result: isize) -> Option<WhyUnreadable> {
    if result != -1 {
        // Part of the memory is not mapped.
        return None;
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::PERM | Errno::ACCESS) => Some(match may_call_process_vm() {
            true => WhyUnreadable::NoPtrace,
            false => WhyUnreadable::NoSystemCall,
        }),
        Some(Errno::NOSYS) => Some(WhyUnreadable::NoSystemCall),
        // The process is gone, or the memory is not mapped.
        _ => None,
    }
}

/// Whether this process may call process_vm_readv(2) and process_vm_writev(2) at all. It copies a byte of its own memory:
/// no security module forbids that, only a seccomp filter.
pub fn may_call_process_vm() -> bool {
    let (from, mut to) = (0u8, 0u8);
    let from = piece_of(((&raw const from).expose_provenance() as u64, 1));
    let to = piece_of(((&raw mut to).expose_provenance() as u64, 1));
    let pid = std::process::id() as libc::pid_t;
    // SAFETY: one byte of a local to another local.
    let read = unsafe { libc::process_vm_readv(pid, &raw const to, 1, &raw const from, 1, 0) };
    // SAFETY: as above.
    let written = unsafe { libc::process_vm_writev(pid, &raw const from, 1, &raw const to, 1, 0) };
    (read, written) == (1, 1)
}

/// The same pieces. None contains both the byte before the position `at` and the one there.
fn parted(
    pieces: impl Iterator<Item = (u64, usize)>,
    at: usize,
) -> impl Iterator<Item = (u64, usize)> {
    let mut before = at;
    let parts = pieces.flat_map(move |(addr, len)| {
        let head = before.min(len);
        before -= head;
        [(addr, head), (addr.wrapping_add(head as u64), len - head)]
    });
    parts.filter(|(_, len)| *len > 0)
}

/// A list for the kernel, and its length.
fn list<const N: usize>(
    pieces: impl Iterator<Item = (u64, usize)>,
) -> Result<([libc::iovec; N], usize), NotCopied> {
    let (mut list, mut count) = ([piece_of((0, 0)); N], 0);
    for piece in pieces {
        *list.get_mut(count).ok_or(NotCopied)? = piece_of(piece);
        count += 1;
    }
    Ok((list, count))
}

fn piece_of((addr, len): (u64, usize)) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(addr as usize),
        iov_len: len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr_of<T: ?Sized>(bytes: &T) -> u64 {
        (&raw const *bytes).cast::<u8>().expose_provenance() as u64
    }

    fn own() -> (Witness, Testimony) {
        let (witness, testimony) = (Witness::new().unwrap(), Testimony::default());
        witness.testify(&testimony);
        (witness, testimony)
    }

    #[test]
    fn pieces_are_filled_in_order() {
        let (_witness, testimony) = own();
        let process = Process::new(std::process::id(), &testimony);
        let from: Vec<u8> = (0..100).collect();
        let to = [[0u8; 60], [0u8; 60]];
        let pieces = [(addr_of(&to[1]), 60), (addr_of(&to[0]), 40)];
        // SAFETY: memory of this test.
        let read = unsafe {
            process.read(
                [(addr_of(&from[..]), 100)].into_iter(),
                100,
                pieces.into_iter(),
            )
        };
        assert_eq!(read, Ok(()));
        // SAFETY: the kernel has written it.
        let to = unsafe { std::ptr::read_volatile(&raw const to) };
        assert_eq!((&to[1][..], &to[0][..40]), (&from[..60], &from[60..]));
        assert_eq!(to[0][40..], [0; 20]);
    }

    #[test]
    fn another_process_with_the_number_and_memory_that_is_not_mapped_are_noticed() {
        let (_witness, testimony) = own();
        let (byte, to) = (7u8, 0u8);
        // SAFETY: memory of this test.
        let read = |process: &Process, from| unsafe {
            process.read([(from, 1)].into_iter(), 1, [(addr_of(&to), 1)].into_iter())
        };
        let process = Process::new(std::process::id(), &testimony);
        assert_eq!(read(&process, 4096), Err(NotCopied));
        assert_eq!(process.why_unreadable(), None);
        assert_eq!(read(&process, addr_of(&byte)), Ok(()));
        testimony.words[1].fetch_add(1, Ordering::Relaxed);
        let process = Process::new(std::process::id(), &testimony);
        assert_eq!(read(&process, addr_of(&byte)), Err(NotCopied));
        testimony.at.store(8, Ordering::Relaxed);
        let process = Process::new(std::process::id(), &testimony);
        assert_eq!(read(&process, addr_of(&byte)), Err(NotCopied));
    }

    #[test]
    fn a_process_that_is_not_visible_or_has_no_witness_is_not_read() {
        let (_witness, testimony) = own();
        let why = |pid, testimony| Process::new(pid, testimony).why_unreadable();
        assert_eq!(why(0, &testimony), Some(WhyUnreadable::OtherNamespace));
        let none = Testimony::default();
        assert_eq!(
            why(std::process::id(), &none),
            Some(WhyUnreadable::NoWitness)
        );
        assert_eq!(why(std::process::id(), &testimony), None);
        for why in WhyUnreadable::ALL {
            assert_eq!(WhyUnreadable::of_number(why.number()), Some(why));
        }
    }

    #[test]
    fn pieces_are_parted_where_the_last_bytes_begin() {
        let parted = |pieces: &[(u64, usize)], at| -> Vec<_> {
            super::parted(pieces.iter().copied(), at).collect()
        };
        assert_eq!(parted(&[(100, 20)], 12), [(100, 12), (112, 8)]);
        let pieces = [(100, 10), (200, 10)];
        assert_eq!(parted(&pieces, 10), pieces);
        assert_eq!(parted(&pieces, 12), [(100, 10), (200, 2), (202, 8)]);
        assert_eq!(parted(&pieces, 8), [(100, 8), (108, 2), (200, 10)]);
        // All of them, and none.
        assert_eq!(parted(&pieces, 0), pieces);
        assert_eq!(parted(&pieces, 20), pieces);
    }

    #[test]
    fn a_write_of_as_many_pieces_as_one_copy_has_is_parted_all_the_same() {
        const EACH: usize = 10;
        let (_witness, testimony) = own();
        let process = Process::new(std::process::id(), &testimony);
        let from: Vec<u8> = (0..).take((PIECES_MAX + 2) * EACH).collect();
        let (gate, to) = ([0u8], [0u8; (PIECES_MAX + 2) * EACH]);
        let write = |count: usize| {
            let pieces = from.chunks(EACH).take(count);
            let pieces = pieces.map(|piece| (addr_of(piece), EACH));
            process.write(addr_of(&gate), pieces, addr_of(&to), count * EACH)
        };
        assert_eq!(write(PIECES_MAX + 2), Err(NotCopied));
        assert_eq!(write(PIECES_MAX), Ok(()));
        // SAFETY: memory of this test. The kernel has written it.
        let to = unsafe { std::ptr::read_volatile(&raw const to) };
        let written = PIECES_MAX * EACH;
        assert_eq!(to[..written], from[..written]);
        assert_eq!(to[written..], [0; 2 * EACH]);
    }

    #[test]
    fn more_pieces_than_one_copy_has_are_refused() {
        let (_witness, testimony) = own();
        let process = Process::new(std::process::id(), &testimony);
        let bytes = [0u8; PIECES_MAX + 1];
        let pieces = |count: usize| bytes[..count].iter().map(|byte| (addr_of(byte), 1));
        let from = addr_of(&testimony);
        for (count, expected) in [(PIECES_MAX, Ok(())), (PIECES_MAX + 1, Err(NotCopied))] {
            let from = [(from, count)].into_iter();
            // SAFETY: memory of this test.
            let read = unsafe { process.read(from, count, pieces(count)) };
            assert_eq!(read, expected);
        }
    }
}
