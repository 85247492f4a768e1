//! Memory that peers may access at any time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::time::Instant;

use portolan_provider::traits::{Mw, Pd};
use portolan_provider::verbs::{Access, Sge};
use portolan_provider::{Cause, Error, Result, Step};

use super::backing::Backing;
use super::memory::RemoteMemory;
use super::program::Memory;
use super::wide;
use crate::lease::Lease;

/// Bytes of an atomic, and of the words in which memory is copied.
const WORD_BYTES: usize = 8;

/// Memory that peers may read or write at any time while it exists, within its access rights.
///
/// Every peer that knows its key and is connected in the same domain ([`Domain`](crate::Domain)) can access it.
/// Connections without a domain share one for each device.
///
/// Software devices draw keys at random. Those of the kernel's devices come from their drivers, and a connected peer may
/// guess them: Linux's rdma_rxe makes a key of the region's index and one random byte (`rxe_mr_init` in
/// `drivers/infiniband/sw/rxe/rxe_mr.c`). Separate peers that do not trust each other by a [`Domain`](crate::Domain)
/// for each, or give each a [`Window`](crate::Window).
///
/// Access ends when the memory is revoked ([`SharedMemory::revoke`]) or dropped, at a set time
/// ([`SharedMemory::expire_at`]), or with the last connection of its domain. A domain of one connection ends with it.
/// If the opening of a window was cancelled, dropped memory stays until that window's binding has ended.
///
/// There are no slices of it, because the bytes may change at any time. [`SharedMemory::load`] and
/// [`SharedMemory::store`] copy. A program that wants to use the bytes in place withdraws the memory
/// ([`SharedMemory::revoke`]), and may share the memory again
/// ([`Buffer::into_memory`](crate::Buffer::into_memory), [`Connection::share_memory`](crate::Connection::share_memory)).
///
/// # Order and atomicity
///
/// * An aligned word of eight bytes is loaded and stored whole by this program. Peers' atomics change it whole.
/// * A peer's read fetches bytes in no particular order, packet by packet. If it overlaps a store or another peer's
///   write, it returns old bytes, new bytes, or a mixture. Data that changes needs a checksum, or a version before
///   and after it that the reader compares. To fetch one word whole, a peer adds zero to it
///   ([`Connection::fetch_add`](crate::Connection::fetch_add)).
/// * A peer's write arrives in any order, too; only software devices store its last bytes last. It is complete when
///   a later message of that peer arrives: another send, or the write's own immediate data
///   ([`Connection::write_with_immediate`](crate::Connection::write_with_immediate)). Then
///   [`SharedMemory::load`] finds all its bytes.
/// * This program's atomics ([`SharedMemory::fetch_add`], [`SharedMemory::compare_swap`]) are atomic with those of
///   peers on software devices. On a kernel device they are if its
///   [`atomic_cap`](crate::provider::verbs::DeviceAttr::atomic_cap) is `IBV_ATOMIC_GLOB`. Otherwise this program must use
///   the device for its own atomics, too, by a connection to its own host.
///
/// ```
/// use portolan::Access;
/// # let (server, client) = portolan::doc_pair()?;
///
/// let memory = server.share(16, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// memory.store(0, b"ahoy");
/// let bytes = client.read(vec![0; 4], memory.remote())?.wait()?.buffer;
/// client.write(bytes, memory.remote().slice(8, 4).expect("within it"))?.wait()?;
/// let mut copy = [0; 4];
/// memory.load(8, &mut copy);
/// assert_eq!(&copy, b"ahoy");
/// # Ok::<(), portolan::Error>(())
/// ```
pub struct SharedMemory {
    /// The queues of connections share it while a window on it is being bound.
    pub(super) backing: Arc<Backing>,
    access: Access,
    lease: Lease,
    /// The first registration's address and key.
    pub(super) pd: Arc<dyn Pd>,
    rkey: u32,
}

/// Shared memory that stays registered, for work that names it.
#[derive(Clone)]
pub(crate) struct KeptRegistered(#[allow(dead_code, reason = "it is only kept")] Arc<Backing>);

impl fmt::Debug for KeptRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptRegistered")
    }
}

impl SharedMemory {
    /// Allocates zeroed memory and registers it for peers.
    ///
    /// # Errors
    /// As for [`Buffer::new`](crate::Buffer::new).
    pub fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        let access = access | Access::LOCAL_WRITE;
        let backing = Backing::new(pd, length, access)?;
        let rkey = first_rkey(&backing)?;
        Ok(Self {
            backing: Arc::new(backing),
            access,
            lease: Lease::default(),
            pd: pd.clone(),
            rkey,
        })
    }

    /// Registers the program's memory for peers, without copying.
    ///
    /// # Errors
    /// The memory is empty, a limit of the device is reached, or read-only memory is shared for writing. The error
    /// returns the memory.
    pub fn of<M: Memory>(
        pd: &Arc<dyn Pd>,
        memory: M,
        access: Access,
    ) -> std::result::Result<Self, (Error, M)> {
        let access = access | Access::LOCAL_WRITE;
        let backing = Backing::of(memory);
        let registered = match backing.len() {
            _ if !M::IS_WRITABLE
                && !(Access::REMOTE_READ | Access::LOCAL_WRITE).contains(access) =>
            {
                let (what, expected) = ("rights to memory that is only read", Access::REMOTE_READ);
                let found = access - Access::LOCAL_WRITE;
                Err(Error::invalid(Step::RegisterMemory, what, expected, found))
            }
            0 => {
                let (what, expected) = ("length of shared memory", "1 or more");
                Err(Error::invalid(Step::RegisterMemory, what, expected, 0))
            }
            _ => backing.with_region(pd, access, |region| region.rkey()),
        };
        match registered {
            Ok(rkey) => Ok(Self {
                backing: Arc::new(backing),
                access,
                lease: Lease::default(),
                pd: pd.clone(),
                rkey,
            }),
            Err(error) => match backing.into_memory() {
                Ok(memory) => Err((error, memory)),
                Err(_) => unreachable!("it was made of this, and nothing is registered"),
            },
        }
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.backing.len()
    }

    /// The description for peers of connections without a domain, or of the only device. For memory of a
    /// [`Domain`](crate::Domain) with several devices, it is valid for the first of them;
    /// [`Connection::offer`](crate::Connection::offer) returns each connection's.
    pub fn remote(&self) -> RemoteMemory {
        self.with_rkey(self.rkey)
    }

    /// The description for a peer of a queue pair in this protection domain. Registers the memory there at the first
    /// use.
    ///
    /// # Errors
    /// Errors of registering.
    pub(crate) fn remote_in(&self, pd: &Arc<dyn Pd>) -> Result<RemoteMemory> {
        self.lease.check()?;
        let access = self.access;
        let rkey = self
            .backing
            .with_region(pd, access, |region| region.rkey())?;
        self.lease.covers(&self.backing.regions());
        Ok(self.with_rkey(rkey))
    }

    /// Sets the time when peers lose access. Until then, another call can change the time.
    ///
    /// The memory itself stays, and this program can still use it ([`SharedMemory::load`], [`SharedMemory::revoke`]). A
    /// later request of a peer is refused, which breaks the peer's connection. So tell the peer how long it has access.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    /// let chart = server.share(4096, Access::REMOTE_READ)?;
    /// chart.expire_at(Instant::now() + Duration::from_secs(60))?;
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidState` if the memory has already expired; an error if the thread that ends the access cannot be started.
    pub fn expire_at(&self, at: Instant) -> Result<()> {
        self.lease.covers(&self.backing.regions());
        self.lease.end_at(at)
    }

    /// Whether the memory has expired ([`SharedMemory::expire_at`]), so that no peer can access it.
    pub fn has_expired(&self) -> bool {
        self.lease.check().is_err()
    }

    /// The local key of the registration in a protection domain, for a window.
    pub(crate) fn lkey_in(&self, pd: &Arc<dyn Pd>) -> Result<u32> {
        self.backing
            .with_region(pd, self.access, |region| region.lkey())
    }

    /// Adds a window that closes when the memory expires.
    ///
    /// # Errors
    /// It has expired.
    pub(crate) fn opens(&self, window: &Arc<dyn Mw>) -> Result<()> {
        self.lease.opens(window)
    }

    /// Whether nobody may write it ([`Memory`]).
    pub(crate) fn is_read_only(&self) -> bool {
        !self.backing.is_writable()
    }

    /// The protection domain of the first registration.
    pub(crate) fn pd(&self) -> &Arc<dyn Pd> {
        &self.pd
    }

    fn with_rkey(&self, rkey: u32) -> RemoteMemory {
        RemoteMemory {
            addr: self.backing.start().as_ptr() as u64,
            length: self.len() as u64,
            rkey,
            access: self.access & RemoteMemory::RIGHTS,
        }
    }

    /// The peers' rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// A range of it for a work request of the low layer. Peers may write to it at any time, and so may a receive or
    /// a read.
    ///
    /// # Panics
    /// If the range is outside the memory.
    #[track_caller]
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        self.check(offset, length);
        Sge {
            addr: self.backing.start().as_ptr() as u64 + offset as u64,
            length: length as u32,
            lkey: self.lkey(),
        }
    }

    /// Begins to fetch the line at `offset` into the caches. Only x86-64 processors do.
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len() {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: inside the memory. It changes nothing but the caches.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(self.backing.start().as_ptr().add(offset).cast())
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Copies bytes from `offset` on to `into`. Bytes that a peer writes meanwhile may be old or new.
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(16, Access::REMOTE_READ)?;
    /// memory.store(8, &7u64.to_ne_bytes());
    /// let mut word = [0; 8];
    /// memory.load(8, &mut word);
    /// assert_eq!(u64::from_ne_bytes(word), 7);
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range is outside the memory.
    #[track_caller]
    pub fn load(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let mut at = 0;
        while at < into.len() {
            let whole = self.read_words(offset + at, &mut into[at..]);
            at += whole;
            if at == into.len() {
                break;
            }
            let (bytes, word) = self.read_unit(offset + at, into.len() - at);
            into[at..at + bytes].copy_from_slice(&word[..bytes]);
            at += bytes;
        }
        fence(Ordering::Acquire);
    }

    /// Copies bytes to `offset`, the last byte last: a program of this host that finds it changed finds the others
    /// changed, too. A peer's read promises less; see [order and atomicity](SharedMemory#order-and-atomicity).
    ///
    /// # Panics
    /// If the range is outside the memory, or the memory is read-only ([`Memory`]).
    #[track_caller]
    pub fn store(&self, offset: usize, from: &[u8]) {
        assert!(self.backing.is_writable(), "this memory is only read");
        self.check(offset, from.len());
        let mut at = 0;
        while at < from.len() {
            // The last unit is written on its own.
            at += self.write_words(offset + at, &from[at..from.len() - 1]);
            let left = from.len() - at;
            if left == self.unit(offset + at, left) {
                fence(Ordering::Release);
            }
            at += self.write_unit(offset + at, &from[at..]);
        }
    }

    /// Adds to the eight bytes at `offset`, a number in this machine's byte order, as peers do with
    /// [`Connection::fetch_add`](crate::Connection::fetch_add). Returns the value before. See
    /// [order and atomicity](SharedMemory#order-and-atomicity).
    ///
    /// ```
    /// # use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    /// let counter = server.share(8, Access::REMOTE_ATOMIC)?;
    /// client.fetch_add(vec![0; 8], counter.remote(), 5)?.wait()?;
    /// assert_eq!(counter.fetch_add(0, 1), 5);
    /// assert_eq!(counter.compare_swap(0, 6, 0), 6);
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the bytes are outside the memory or not aligned to eight, or the memory is read-only ([`Memory`]).
    #[track_caller]
    pub fn fetch_add(&self, offset: usize, add: u64) -> u64 {
        self.word(offset).fetch_add(add, Ordering::SeqCst)
    }

    /// Replaces the eight bytes at `offset` if their value is `compare`, as peers do with
    /// [`Connection::compare_swap`](crate::Connection::compare_swap). Returns the value before.
    ///
    /// # Panics
    /// As for [`SharedMemory::fetch_add`].
    #[track_caller]
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> u64 {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let swapped = self
            .word(offset)
            .compare_exchange(compare, swap, success, failure);
        swapped.unwrap_or_else(|found| found)
    }

    /// Keeps the memory registered, if it is dropped, while the result exists.
    pub(crate) fn keep_registered(&self) -> KeptRegistered {
        KeptRegistered(Arc::clone(&self.backing))
    }

    fn lkey(&self) -> u32 {
        // The memory was registered when it was created.
        self.backing
            .first_region()
            .map_or(0, |region| region.lkey())
    }

    #[track_caller]
    fn check(&self, offset: usize, length: usize) {
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.len());
        assert!(
            fits,
            "range {offset}+{length} is outside of {} bytes",
            self.len()
        );
    }

    /// The word at `offset`.
    #[track_caller]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(self.backing.is_writable(), "this memory is only read");
        self.check(offset, WORD_BYTES);
        assert_eq!(
            self.unit(offset, WORD_BYTES),
            WORD_BYTES,
            "offset {offset} is not aligned to eight bytes"
        );
        // SAFETY: `check` made sure that the word is inside the allocation, and `unit` that it is aligned. Every access
        // of this process to it uses atomics or the device, and it lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.backing.start().as_ptr().add(offset).cast()) }
    }

    /// The bytes that are accessed together at `offset`, if `wanted` are accessed from there on: an aligned word, or
    /// one byte. The program's memory may start at any address.
    fn unit(&self, offset: usize, wanted: usize) -> usize {
        let address = self.backing.start().as_ptr() as usize + offset;
        match address.is_multiple_of(WORD_BYTES) && wanted >= WORD_BYTES {
            true => WORD_BYTES,
            false => 1,
        }
    }

    /// Reads aligned words, in a loop that does nothing else. Returns the number of bytes; 0 if `offset` is not aligned.
    fn read_words(&self, offset: usize, into: &mut [u8]) -> usize {
        if self.unit(offset, into.len()) != WORD_BYTES {
            return 0;
        }
        let mut at = self.backing.start().as_ptr().wrapping_add(offset);
        // SAFETY: as below; `unit` has checked the alignment.
        let wide = unsafe { wide::copy_out(at, into) };
        if wide > 0 {
            return wide;
        }
        let words = into.chunks_exact_mut(WORD_BYTES);
        let bytes = words.len() * WORD_BYTES;
        for into in words {
            // SAFETY: as in `read_unit`: `check` made sure that all words are inside the allocation.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
            into.copy_from_slice(&word.to_ne_bytes());
            at = at.wrapping_add(WORD_BYTES);
        }
        bytes
    }

    /// Reads one aligned word, or one byte at the edges.
    fn read_unit(&self, offset: usize, wanted: usize) -> (usize, [u8; 8]) {
        // SAFETY: `check` made sure that the unit is inside the allocation. It is aligned for its type, and every
        // access of this process to it uses atomics or the device.
        unsafe {
            let at = self.backing.start().as_ptr().add(offset);
            if self.unit(offset, wanted) == WORD_BYTES {
                let word = AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed);
                (8, word.to_ne_bytes())
            } else {
                let byte = AtomicU8::from_ptr(at).load(Ordering::Relaxed);
                (1, [byte, 0, 0, 0, 0, 0, 0, 0])
            }
        }
    }

    /// Writes aligned words, as [`read_words`](Self::read_words) reads them.
    fn write_words(&self, offset: usize, from: &[u8]) -> usize {
        if self.unit(offset, from.len()) != WORD_BYTES {
            return 0;
        }
        let (words, _) = from.as_chunks::<WORD_BYTES>();
        let mut at = self.backing.start().as_ptr().wrapping_add(offset);
        // SAFETY: as in `read_words`.
        let wide = unsafe { wide::copy_in(from, at) };
        if wide > 0 {
            return wide;
        }
        for word in words {
            // SAFETY: as in `read_words`.
            let place = unsafe { AtomicU64::from_ptr(at.cast()) };
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at = at.wrapping_add(WORD_BYTES);
        }
        words.len() * WORD_BYTES
    }

    /// Writes one aligned word, or one byte at the edges.
    fn write_unit(&self, offset: usize, from: &[u8]) -> usize {
        // SAFETY: as in `read_unit`.
        unsafe {
            let at = self.backing.start().as_ptr().add(offset);
            match from.first_chunk::<WORD_BYTES>() {
                Some(word) if self.unit(offset, from.len()) == WORD_BYTES => {
                    let word = u64::from_ne_bytes(*word);
                    AtomicU64::from_ptr(at.cast()).store(word, Ordering::Relaxed);
                    8
                }
                _ => {
                    AtomicU8::from_ptr(at).store(from[0], Ordering::Relaxed);
                    1
                }
            }
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({:?})", self.remote())
    }
}

fn first_rkey(backing: &Backing) -> Result<u32> {
    let region = backing.first_region();
    let missing = || {
        Error::new(
            Step::RegisterMemory,
            Cause::NoSuchObject("the memory region"),
        )
    };
    Ok(region.ok_or_else(missing)?.rkey())
}
