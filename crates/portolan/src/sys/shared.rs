//! Memory that peers may access at any time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::time::Instant;

use portolan_provider::traits::Pd;
use portolan_provider::verbs::{Access, Sge};
use portolan_provider::{Cause, Error, Result, Step};

use super::backing::Backing;
use super::buffer::Buffer;
use super::memory::RemoteMemory;
use super::program::Memory;
use crate::lease::Lease;

/// Memory that peers may read or write at any time while it exists, within its access rights.
///
/// Every peer that knows its key and is connected in the same domain ([`Domain`](crate::Domain)) can access it.
/// Connections without a domain share one for each device. Keys cannot be guessed.
///
/// Access ends when the memory is revoked ([`SharedMemory::revoke`]) or dropped, at a set time
/// ([`SharedMemory::expire_at`]), or with the last connection of its domain. A domain of one connection ends with it.
///
/// There are no slices of it, because the bytes may change at any time. [`SharedMemory::load`] and
/// [`SharedMemory::store`] copy.
pub struct SharedMemory {
    backing: Backing,
    access: Access,
    lease: Lease,
    /// The first registration's address and key.
    pd: Arc<dyn Pd>,
    rkey: u32,
}

impl SharedMemory {
    /// Allocates zeroed memory and registers it for peers.
    ///
    /// # Errors
    /// As for [`Buffer::new`].
    pub fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        let access = access | Access::LOCAL_WRITE;
        let backing = Backing::new(pd, length, access)?;
        let rkey = first_rkey(&backing)?;
        Ok(Self {
            backing,
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
                backing,
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

    /// The description for peers of connections without a domain, or of the only device. For memory of a [`Domain`](crate::Domain) with several devices, it is valid for the
    /// first of them; [`Connection::offer`](crate::Connection::offer) returns each connection's.
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
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        self.check(offset, length);
        Sge {
            addr: self.backing.start().as_ptr() as u64 + offset as u64,
            length: length as u32,
            lkey: self.lkey(),
        }
    }

    /// Copies bytes from `offset` on to `into`. Bytes that a peer writes meanwhile may be old or new.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn load(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let mut at = 0;
        while at < into.len() {
            let (bytes, word) = self.read_unit(offset + at, into.len() - at);
            into[at..at + bytes].copy_from_slice(&word[..bytes]);
            at += bytes;
        }
        fence(Ordering::Acquire);
    }

    /// Copies bytes to `offset`, the last byte last.
    ///
    /// # Panics
    /// If the range is outside the memory, or the memory is read-only ([`Memory`]).
    pub fn store(&self, offset: usize, from: &[u8]) {
        assert!(self.backing.is_writable(), "this memory is only read");
        self.check(offset, from.len());
        let mut at = 0;
        while at < from.len() {
            if from.len() - at == 1 {
                fence(Ordering::Release);
            }
            at += self.write_unit(offset + at, &from[at..]);
        }
    }

    /// Withdraws the peers' rights on every device. Returns the memory as an ordinary buffer. If a process of this host
    /// was stopped in the middle of a write to memory of the library's, it returns a copy instead.
    ///
    /// # Errors
    /// A region cannot be deregistered, or cannot be registered again for local use.
    pub fn revoke(mut self) -> Result<Buffer> {
        self.backing.restrict(Access::LOCAL_WRITE)?;
        if self.backing.is_exclusive() {
            return Ok(Buffer::whole(self.backing));
        }
        let mut buffer = Buffer::new(&self.pd, self.len())?;
        self.load(0, &mut buffer);
        Ok(buffer)
    }

    fn lkey(&self) -> u32 {
        // The memory was registered when it was created.
        self.backing
            .first_region()
            .map_or(0, |region| region.lkey())
    }

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

    /// Reads one aligned word, or one byte at the edges.
    fn read_unit(&self, offset: usize, wanted: usize) -> (usize, [u8; 8]) {
        // SAFETY: `check` made sure that the unit is inside the allocation. It is aligned for its type, and every
        // access of this process to it uses atomics or the device.
        unsafe {
            let at = self.backing.start().as_ptr().add(offset);
            if offset.is_multiple_of(8) && wanted >= 8 {
                let word = AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed);
                (8, word.to_ne_bytes())
            } else {
                let byte = AtomicU8::from_ptr(at).load(Ordering::Relaxed);
                (1, [byte, 0, 0, 0, 0, 0, 0, 0])
            }
        }
    }

    /// Writes one aligned word, except for the very last byte, which is written separately.
    fn write_unit(&self, offset: usize, from: &[u8]) -> usize {
        // SAFETY: as in `read_unit`.
        unsafe {
            let at = self.backing.start().as_ptr().add(offset);
            match from.first_chunk::<8>() {
                Some(word) if offset.is_multiple_of(8) && from.len() > 8 => {
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
