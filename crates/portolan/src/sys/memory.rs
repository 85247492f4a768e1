//! Registered memory: buffers that belong to the program or to posted work, never to both.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use portolan_provider::traits::{Mr, Pd};
use portolan_provider::verbs::{Access, RemoteAddr};
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
    pub(super) memory: Registered,
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

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// An allocation and its registration; deregistered before it is freed.
pub(super) struct Registered {
    pub(super) start: NonNull<u8>,
    pub(super) layout: Layout,
    pub(super) region: Arc<dyn Mr>,
}

// SAFETY: the allocation is owned, and `Mr` is Send and Sync.
unsafe impl Send for Registered {}
// SAFETY: shared access is by slices of memory that nothing writes (`Buffer`) or by atomics.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        let layout = check_length(length)?;
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

impl Registered {
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn region(&self) -> &Arc<dyn Mr> {
        &self.region
    }

    /// Registers the memory anew, for other rights.
    pub(super) fn register_again(&mut self, pd: &Arc<dyn Pd>, access: Access) -> Result<()> {
        self.region.deregister()?;
        // SAFETY: the memory is still this allocation, which `self` keeps mapped.
        self.region =
            unsafe { pd.register(self.start.as_ptr() as u64, self.len() as u64, access)? };
        Ok(())
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

/// How memory of a length lies; an error for a length that a region cannot have.
pub(super) fn check_length(length: usize) -> Result<Layout> {
    Some(length)
        .filter(|length| (1..=BUFFER_MAX_BYTES).contains(length))
        .and_then(|length| Layout::from_size_align(length, ALIGNMENT).ok())
        .ok_or_else(|| {
            let expected = format!("1 to {BUFFER_MAX_BYTES} bytes");
            Error::invalid(Step::RegisterMemory, "length", expected, length)
        })
}
