//! Registered memory: buffers that belong to the program or to posted work, never to both, and
//! memory that peers may reach at any time.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use portolan_provider::traits::{Mr, Pd};
use portolan_provider::verbs::{Access, RemoteAddr, Sge};
use portolan_provider::{Cause, Error, Result, Step};

/// Alignment of registered memory: a cache line, so that neighbours do not share one.
const ALIGNMENT: usize = 64;

/// The longest buffer: a message's greatest length (IBTA 9.7.1, 2^31 bytes).
pub const BUFFER_MAX_BYTES: usize = 1 << 31;

/// A registered buffer of this process, for sends, receives, and as source or destination of
/// transfers.
///
/// While it is in your hands no device touches it and it is an ordinary slice. Posting work takes
/// the buffer by value, and the work's end gives it back: so it can be neither freed nor reused
/// while work on it is posted.
pub struct Buffer {
    memory: Registered,
}

/// Memory that peers may read or write at any time while it exists, as its access says.
///
/// It gives no slices, for the bytes may change under them; [`SharedMemory::load`] and
/// [`SharedMemory::store`] copy.
pub struct SharedMemory {
    memory: Registered,
}

/// Where a peer's memory is: one side sends this to the other to let it read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Virtual address in the peer.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Remote key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// Bytes of the encoded form.
    pub const LEN: usize = 16;

    /// As bytes to send to a peer: address, key, length, each big-endian (the order that rping
    /// uses).
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// From the bytes that a peer sent; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk::<8>()?;
        let (rkey, rest) = rest.split_first_chunk::<4>()?;
        let (length, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            addr: u64::from_be_bytes(*addr),
            length: u32::from_be_bytes(*length),
            rkey: u32::from_be_bytes(*rkey),
        })
    }

    /// The part from `offset` on.
    pub fn slice(self, offset: u32, length: u32) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| Self {
            addr: self.addr.wrapping_add(u64::from(offset)),
            length,
            rkey: self.rkey,
        })
    }

    pub(crate) fn at(self) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr,
            rkey: self.rkey,
        }
    }
}

impl Buffer {
    /// Allocates zeroed memory and registers it for local use.
    ///
    /// # Errors
    /// The length is 0 or above [`BUFFER_MAX_BYTES`], there is no memory (`ENOMEM`), or the device's
    /// limit of regions is reached.
    pub fn new(pd: &Arc<dyn Pd>, length: usize) -> Result<Self> {
        Ok(Self {
            memory: Registered::new(pd, length, Access::LOCAL_WRITE)?,
        })
    }

    /// The piece of memory that the first `length` bytes are, for a work request.
    pub(crate) fn sge(&self, length: usize) -> Sge {
        debug_assert!(length <= self.memory.layout.size());
        Sge {
            addr: self.memory.start.as_ptr() as u64,
            length: length as u32,
            lkey: self.memory.region.lkey(),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is `size` initialized bytes, and no device touches it: work on it
        // owns the buffer, and peers have no rights to it.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.layout.size()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.layout.size())
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
            memory: Registered::new(pd, length, access | Access::LOCAL_WRITE)?,
        })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.memory.layout.size()
    }

    /// What to tell a peer.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: self.memory.start.as_ptr() as u64,
            length: self.len() as u32,
            rkey: self.memory.region.rkey(),
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
            addr: self.memory.start.as_ptr() as u64 + offset as u64,
            length: length as u32,
            lkey: self.memory.region.lkey(),
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

    /// Withdraws the peers' rights; the memory becomes an ordinary buffer.
    ///
    /// # Errors
    /// The region cannot be registered anew for local use.
    pub fn revoke(self, pd: &Arc<dyn Pd>) -> Result<Buffer> {
        let mut memory = self.memory;
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
            let at = self.memory.start.as_ptr().add(offset);
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
            let at = self.memory.start.as_ptr().add(offset);
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

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({:?})", self.remote())
    }
}

/// An allocation and its registration; deregistered before it is freed.
struct Registered {
    start: NonNull<u8>,
    layout: Layout,
    region: Arc<dyn Mr>,
}

// SAFETY: the allocation is owned, and `Mr` is Send and Sync.
unsafe impl Send for Registered {}
// SAFETY: shared access is by slices of memory that nothing writes (`Buffer`) or by atomics.
unsafe impl Sync for Registered {}

impl Registered {
    fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        let layout = Some(length)
            .filter(|length| (1..=BUFFER_MAX_BYTES).contains(length))
            .and_then(|length| Layout::from_size_align(length, ALIGNMENT).ok())
            .ok_or_else(|| {
                let expected = format!("1 to {BUFFER_MAX_BYTES} bytes");
                Error::invalid(Step::RegisterMemory, "length", expected, length)
            })?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            let (call, errno) = ("mmap", portolan_provider::error::errno::ENOMEM);
            Error::new(Step::RegisterMemory, Cause::Os { call, errno })
        })?;
        // SAFETY: the allocation stays until `drop`, which deregisters first; `Buffer` and
        // `SharedMemory` give the program only the access that the device leaves it.
        let region = unsafe { pd.register(start.as_ptr() as u64, layout.size() as u64, access) };
        match region {
            Ok(region) => Ok(Self {
                start,
                layout,
                region,
            }),
            Err(error) => {
                // SAFETY: allocated above with this layout, and no other code has it.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.region.deregister().is_ok() {
            // SAFETY: allocated in `new` with this layout; the device no longer touches it.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
        // A region that cannot be deregistered may still be written: its memory is left alone.
    }
}
