//! Memory that peers may reach at any time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use portolan_provider::Result;
use portolan_provider::traits::{HostMemory, Mr, Pd};
use portolan_provider::verbs::{Access, Sge};

use super::memory::{Buffer, Registered, RemoteMemory, check_length};

/// Memory that peers may read or write at any time while it exists, as its access says.
///
/// It gives no slices, for the bytes may change under them; [`SharedMemory::load`] and
/// [`SharedMemory::store`] copy.
pub struct SharedMemory {
    memory: Memory,
}

/// Where it comes from.
enum Memory {
    Own(Registered),
    Provided(Provided),
}

/// Memory of the provider, which peers of this host may reach without the help of this process.
struct Provided {
    memory: Arc<dyn HostMemory>,
    region: Arc<dyn Mr>,
}

impl Memory {
    fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        check_length(length)?;
        let Some(memory) = pd.alloc_memory(length) else {
            return Ok(Self::Own(Registered::new(pd, length, access)?));
        };
        // SAFETY: the memory stays mapped until `drop`, which deregisters first; the program accesses it by atomics.
        let region = unsafe { pd.register_memory(&memory, access)? };
        Ok(Self::Provided(Provided { memory, region }))
    }

    fn start(&self) -> *mut u8 {
        match self {
            Self::Own(memory) => memory.start.as_ptr(),
            Self::Provided(provided) => {
                std::ptr::with_exposed_provenance_mut(provided.memory.addr() as usize)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Own(memory) => memory.layout.size(),
            Self::Provided(provided) => provided.memory.len(),
        }
    }

    fn region(&self) -> &dyn Mr {
        match self {
            Self::Own(memory) => &*memory.region,
            Self::Provided(provided) => &*provided.region,
        }
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        if self.region.deregister().is_err() {
            // It may still be written to: it is left alone.
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

impl SharedMemory {
    /// Allocates zeroed memory and registers it for peers.
    ///
    /// # Errors
    /// As for [`Buffer::new`].
    pub fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        Ok(Self {
            memory: Memory::new(pd, length, access | Access::LOCAL_WRITE)?,
        })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// What to tell a peer.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: self.memory.start() as u64,
            length: self.len() as u32,
            rkey: self.memory.region().rkey(),
        }
    }

    /// A piece of it for a work request of the low layer: peers may write to it at any time, and so
    /// may a receive or a read.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        self.check(offset, length);
        Sge {
            addr: self.memory.start() as u64 + offset as u64,
            length: length as u32,
            lkey: self.memory.region().lkey(),
        }
    }

    /// Copies bytes out, from `offset` on. Bytes that a peer writes meanwhile may be old or new.
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

    /// Copies bytes in, from `offset` on, the last byte last.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn store(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let mut at = 0;
        while at < from.len() {
            if from.len() - at == 1 {
                fence(Ordering::Release);
            }
            at += self.write_unit(offset + at, &from[at..]);
        }
    }

    /// Withdraws the peers' rights; the memory, or a copy of it, becomes an ordinary buffer.
    ///
    /// # Errors
    /// The region cannot be registered anew for local use.
    pub fn revoke(self, pd: &Arc<dyn Pd>) -> Result<Buffer> {
        match self.memory {
            Memory::Own(mut memory) => {
                memory.region.deregister()?;
                // SAFETY: the memory is still this allocation, which `Registered` keeps mapped.
                memory.region = unsafe {
                    pd.register(
                        memory.start.as_ptr() as u64,
                        memory.layout.size() as u64,
                        Access::LOCAL_WRITE,
                    )?
                };
                Ok(Buffer { memory })
            }
            Memory::Provided(ref provided) => {
                provided.region.deregister()?;
                // A peer's process that was stopped may still write to it: it cannot become a slice.
                let mut buffer = Buffer::new(pd, self.len())?;
                self.load(0, &mut buffer);
                Ok(buffer)
            }
        }
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

    /// Reads one aligned word, or one byte where no whole word is wanted.
    fn read_unit(&self, offset: usize, wanted: usize) -> (usize, [u8; 8]) {
        // SAFETY: `check` has seen that the unit lies in the allocation; it is aligned for its
        // type, and every access of this process to it goes through atomics or the device.
        unsafe {
            let at = self.memory.start().add(offset);
            if offset.is_multiple_of(8) && wanted >= 8 {
                let word = AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed);
                (8, word.to_ne_bytes())
            } else {
                let byte = AtomicU8::from_ptr(at).load(Ordering::Relaxed);
                (1, [byte, 0, 0, 0, 0, 0, 0, 0])
            }
        }
    }

    /// Writes one aligned word and keeps the very last byte for a write of its own.
    fn write_unit(&self, offset: usize, from: &[u8]) -> usize {
        // SAFETY: as in `read_unit`.
        unsafe {
            let at = self.memory.start().add(offset);
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
