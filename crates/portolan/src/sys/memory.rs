//! The library's own registered memory, and descriptions of a peer's memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use portolan_provider::traits::{HostMemory, Mr, Pd};
use portolan_provider::verbs::{Access, RemoteAddr};
use portolan_provider::{Cause, Error, Result, Step};

/// Alignment of registered memory: a cache line, so that neighbours do not share one.
const ALIGNMENT: usize = 64;

/// Maximum length of a message (IBTA 9.7.1, 2^31 bytes). Buffers, writes and reads may be longer.
pub const MESSAGE_MAX_BYTES: usize = 1 << 31;

/// The address, length, key and rights of a peer's memory. One side sends this to the other to let it read or write.
///
/// The side that reads or writes checks rights and bounds before it sends anything. If the peer sends address, length
/// and key in another format, use [`RemoteMemory::new`].
///
/// ```
/// use portolan::{Access, RemoteMemory};
///
/// let mut chart = RemoteMemory::new(0x7f00_0000_0000, 4096, 0x1234);
/// chart.access = Access::REMOTE_READ;
/// let part = chart.slice(1024, 512).expect("it is inside");
/// assert_eq!((part.length, part.access), (512, Access::REMOTE_READ));
/// assert_eq!(RemoteMemory::from_bytes(&part.to_bytes()), Some(part));
/// assert_eq!(chart.slice(4000, 97), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RemoteMemory {
    /// Virtual address in the peer.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Remote key.
    pub rkey: u32,
    /// The `REMOTE_` rights that the peer grants.
    pub access: Access,
}

impl RemoteMemory {
    /// Bytes of the encoded form.
    pub const LEN: usize = 24;

    /// The rights that the encoded form can contain.
    pub(crate) const RIGHTS: Access = Access::REMOTE_READ
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_ATOMIC);

    /// Memory of a peer that has not sent its access rights. This side then checks only the bounds.
    pub fn new(addr: u64, length: u64, rkey: u32) -> Self {
        Self {
            addr,
            length,
            rkey,
            access: Self::RIGHTS,
        }
    }

    /// Encodes the description for a peer: address, length, key and rights (`enum ibv_access_flags`), each big-endian.
    ///
    /// ```
    /// use portolan::{Access, RemoteMemory};
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(16, Access::REMOTE_READ)?;
    /// server.send(memory.remote().to_bytes().to_vec())?.wait()?;
    /// let offer = RemoteMemory::from_bytes(&client.receive()?).expect("an offer");
    /// assert_eq!(offer, memory.remote());
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[20..].copy_from_slice(&self.access.bits().to_be_bytes());
        bytes
    }

    /// Decodes a peer's description. `None` if there are too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (rkey, rest) = rest.split_first_chunk::<4>()?;
        let (access, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            addr: u64::from_be_bytes(*addr),
            length: u64::from_be_bytes(*length),
            rkey: u32::from_be_bytes(*rkey),
            access: Access::from_bits_truncate(u32::from_be_bytes(*access)) & Self::RIGHTS,
        })
    }

    /// The `length` bytes from `offset` on. `None` if they exceed the memory.
    pub fn slice(self, offset: usize, length: usize) -> Option<Self> {
        let (offset, length) = (offset as u64, length as u64);
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| Self {
            addr: self.addr.wrapping_add(offset),
            length,
            ..self
        })
    }

    pub(crate) fn at(self) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr,
            rkey: self.rkey,
        }
    }
}

/// The library's memory and its registration; deregistered before it is freed.
pub(super) struct Registered {
    memory: Allocation,
    region: Arc<dyn Mr>,
}

/// The origin of the memory.
enum Allocation {
    Heap {
        start: NonNull<u8>,
        layout: Layout,
    },
    /// The provider. Trusted peers of this host can access it directly.
    Provided(Arc<dyn HostMemory>),
}

// SAFETY: the allocation is owned; `HostMemory` and `Mr` are Send and Sync.
unsafe impl Send for Registered {}
// SAFETY: shared access uses slices of memory that nothing writes (`Buffer`), or atomics.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        let layout = Some(length)
            .filter(|length| *length > 0)
            .and_then(|length| Layout::from_size_align(length, ALIGNMENT).ok())
            .ok_or_else(|| {
                let expected = format_args!("1 to {} bytes", isize::MAX);
                Error::invalid(Step::RegisterMemory, "length", expected, length)
            })?;
        let for_peers = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(for_peers)
            && let Some(memory) = pd.alloc_memory(length)
        {
            // SAFETY: `memory` stays mapped until `drop`, which deregisters first. `SharedMemory` uses atomics.
            let region = unsafe { pd.register_memory(&memory, access)? };
            let memory = Allocation::Provided(memory);
            return Ok(Self { memory, region });
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            let (call, errno) = ("mmap", portolan_provider::error::errno::ENOMEM);
            Error::new(Step::RegisterMemory, Cause::Os { call, errno })
        })?;
        // SAFETY: the allocation stays until `drop`, which deregisters first. `Buffer` and `SharedMemory` give the
        // program only the access that the device permits.
        let region = unsafe { pd.register(start.as_ptr() as u64, layout.size() as u64, access) };
        match region {
            Ok(region) => Ok(Self {
                memory: Allocation::Heap { start, layout },
                region,
            }),
            Err(error) => {
                // SAFETY: allocated above with this layout, and no other code has it.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        match &self.memory {
            Allocation::Heap { start, .. } => *start,
            Allocation::Provided(memory) => {
                let start = std::ptr::with_exposed_provenance_mut(memory.addr() as usize);
                // A mapping does not start at address 0.
                NonNull::new(start).unwrap_or(NonNull::dangling())
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.memory {
            Allocation::Heap { layout, .. } => layout.size(),
            Allocation::Provided(memory) => memory.len(),
        }
    }

    pub(super) fn region(&self) -> &Arc<dyn Mr> {
        &self.region
    }

    /// Whether the program may have slices of the memory once it is deregistered. A peer that was stopped during a
    /// copy may still write to the provider's memory.
    pub(super) fn is_exclusive(&self) -> bool {
        match &self.memory {
            Allocation::Heap { .. } => true,
            Allocation::Provided(memory) => !memory.is_held(),
        }
    }

    /// Registers the memory again with other rights.
    pub(super) fn register_again(&mut self, pd: &Arc<dyn Pd>, access: Access) -> Result<()> {
        self.region.deregister()?;
        // SAFETY: the memory is still this allocation, which `self` keeps mapped.
        self.region =
            unsafe { pd.register(self.start().as_ptr() as u64, self.len() as u64, access)? };
        Ok(())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Memory that cannot be deregistered may still be written, so it is leaked.
        let is_free = self.region.deregister().is_ok();
        match &self.memory {
            Allocation::Heap { start, layout } if is_free => {
                // SAFETY: allocated in `new` with this layout; the device no longer accesses it.
                unsafe { dealloc(start.as_ptr(), *layout) };
            }
            Allocation::Provided(memory) if !is_free => std::mem::forget(Arc::clone(memory)),
            _ => {}
        }
    }
}
