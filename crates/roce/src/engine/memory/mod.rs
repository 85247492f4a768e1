//! Memory protection: regions and windows by key.

mod window;

use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use portolan_provider::verbs::{Access, Denial, RefusedMemory};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;

use super::mutant::{Mutant, is_planted};

use window::Window;
pub use window::{MemoryOperation, WindowChange, WindowError};

/// A protection domain's number within its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// A registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Protection domain.
    pub pd: PdId,
    /// Address that work requests and peers use for its first byte; `addr` unless registered with another
    /// (`ibv_reg_mr_iova(3)`).
    pub iova: u64,
    /// Address of its first byte in this process.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Rights. Local reading is always allowed.
    pub access: Access,
}

/// Why local memory may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalAccessError {
    /// No region has the key.
    #[error("no memory region has this local key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    ProtectionDomain,
    /// The range is not within the region.
    #[error("the range is not within the memory region")]
    Range,
    /// The region was registered without LOCAL_WRITE.
    #[error("the memory region does not allow local writes")]
    Access,
}

/// A peer may not use this memory (IBTA 9.7.4.1). One error for all causes, so that a peer learns nothing about keys it
/// does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the remote key, range or right does not permit the access")]
pub struct RemoteAccessError;

/// The regions of a device by key, with lookup in constant time.
///
/// A region's local and remote key are the same number, which the host chooses at random. Remote access is still
/// limited by the remote rights of the region and the queue pair.
#[derive(Debug)]
pub struct MemoryTable {
    regions: HashMap<u32, Held, BuildHasherDefault<KeyHasher>>,
    /// By the constant part of their keys.
    windows: HashMap<u32, Window, BuildHasherDefault<KeyHasher>>,
    limit: usize,
}

/// A region, and the number of windows bound to it.
#[derive(Clone, Copy, Debug)]
struct Held {
    region: Region,
    windows: u32,
}

impl MemoryTable {
    /// An empty table for at most `limit` regions.
    pub fn new(limit: usize) -> Self {
        Self {
            regions: HashMap::default(),
            windows: HashMap::default(),
            limit,
        }
    }

    /// Adds a region.
    ///
    /// # Errors
    /// Errors of [`Region::check`]; `InvalidArgument` if the key is in use (draw another); `LimitReached` if the table
    /// is full.
    pub fn insert(&mut self, key: u32, region: Region) -> Result<()> {
        region.check()?;
        if self.regions.len() >= self.limit {
            return Err(Error::new(
                Step::RegisterMemory,
                Cause::LimitReached {
                    what: "memory regions",
                    limit: self.limit as u64,
                },
            ));
        }
        if self.regions.contains_key(&key) || self.is_windows(key) {
            let expected = "a key not in use";
            return Err(Error::invalid(Step::RegisterMemory, "key", expected, key));
        }
        self.regions.insert(key, Held { region, windows: 0 });
        Ok(())
    }

    /// Replaces the region of a key (`ibv_rereg_mr(3)`). No access sees a mixture of the two.
    ///
    /// # Errors
    /// Errors of [`Region::check`]; `InUse` while windows are bound to the current region; `NoSuchObject` if no region
    /// has the key. An error changes nothing.
    pub fn replace(&mut self, key: u32, region: Region) -> Result<()> {
        region.check()?;
        let missing = Error::new(Step::RegisterMemory, Cause::NoSuchObject("memory region"));
        let held = self.regions.get_mut(&key).ok_or(missing)?;
        held.check_unused()?;
        held.region = region;
        Ok(())
    }

    /// Removes a region at its owner's request (`ibv_dereg_mr(3)`); `None` if no region has the key.
    ///
    /// # Errors
    /// `InUse` while windows are bound to it. An error changes nothing.
    pub fn deregister(&mut self, key: u32) -> Result<Option<Region>> {
        if let Some(held) = self.regions.get(&key) {
            held.check_unused()?;
        }
        Ok(self.remove(key))
    }

    /// Removes a region in any case; `None` if no region has the key. Windows bound to it lose their access.
    pub fn remove(&mut self, key: u32) -> Option<Region> {
        let held = self.regions.remove(&key)?;
        if held.windows > 0 {
            self.unbind_all(key);
        }
        Some(held.region)
    }

    /// Whether a region has the key, or a window has it or may get it.
    pub fn contains(&self, key: u32) -> bool {
        self.regions.contains_key(&key) || self.is_windows(key)
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether the table has no regions.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Checks an access by a work request of protection domain `pd` (IBTA 10.6), and returns the address of its first
    /// byte in this process.
    ///
    /// # Errors
    /// See [`LocalAccessError`]; the work request completes with `LocProtErr`.
    #[inline(always)]
    pub fn check_local(
        &self,
        pd: PdId,
        lkey: u32,
        iova: u64,
        len: u32,
        write: bool,
    ) -> core::result::Result<u64, LocalAccessError> {
        let held = self.regions.get(&lkey);
        let region = &held.ok_or(LocalAccessError::UnknownKey)?.region;
        if region.pd != pd {
            return Err(LocalAccessError::ProtectionDomain);
        }
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(LocalAccessError::Access);
        }
        region
            .translate(iova, len.into())
            .ok_or(LocalAccessError::Range)
    }

    /// Checks an access by a peer through queue pair `qpn` of protection domain `pd`, and returns the address of its
    /// first byte in this process. `access` are the rights that the operation needs.
    ///
    /// # Errors
    /// [`RemoteAccessError`]; the peer gets a NAK "remote access error".
    pub fn check_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: u32,
        iova: u64,
        len: u32,
        access: Access,
    ) -> core::result::Result<u64, RemoteAccessError> {
        let Some(Held { region, .. }) = self.regions.get(&rkey) else {
            return self.check_window((pd, qpn), rkey, iova, len, access);
        };
        if region.pd != pd || !region.access.contains(access) {
            return Err(RemoteAccessError);
        }
        let checked = if is_planted(Mutant::RangeUnchecked) {
            0
        } else {
            len
        };
        region
            .translate(iova, checked.into())
            .ok_or(RemoteAccessError)
    }

    /// Why [`check_remote`](Self::check_remote) refused memory.
    pub(in crate::engine) fn denial(&self, pd: PdId, qpn: Qpn, memory: &RefusedMemory) -> Denial {
        let Some(Held { region, .. }) = self.regions.get(&memory.rkey) else {
            return self.denial_by_window((pd, qpn), memory);
        };
        let reach = (region.iova, region.length);
        denial_of(region.pd == pd, reach, memory)
    }
}

/// Why memory with a key that exists is refused. `reach` is the first byte and the length of the key's memory.
fn denial_of(is_for_it: bool, (addr, length): (u64, u64), memory: &RefusedMemory) -> Denial {
    match translate(addr, addr, length, memory.addr, memory.length.into()) {
        _ if !is_for_it => Denial::Elsewhere,
        None => Denial::Range { addr, length },
        Some(_) => Denial::Rights,
    }
}

impl Held {
    /// # Errors
    /// `InUse` while windows are bound to the region.
    fn check_unused(&self) -> Result<()> {
        match self.windows {
            0 => Ok(()),
            count => {
                let cause = Cause::InUse {
                    what: "memory region",
                    by: "memory windows",
                    count: count.into(),
                };
                Err(Error::new(Step::RegisterMemory, cause))
            }
        }
    }
}

impl Region {
    /// Checks whether the region is valid.
    ///
    /// # Errors
    /// `InvalidArgument` if the range wraps around the address space, or if remote writes or atomics are requested
    /// without LOCAL_WRITE (`ibv_reg_mr(3)`).
    pub fn check(&self) -> Result<()> {
        let invalid = |what, expected, found: &dyn core::fmt::Display| {
            Err(Error::invalid(Step::RegisterMemory, what, expected, found))
        };
        let last = self.length.saturating_sub(1);
        if self.addr.checked_add(last).is_none() || self.iova.checked_add(last).is_none() {
            let expected = "a range within the address space";
            return invalid("length", expected, &self.length);
        }
        let needs_local_write = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if self.access.intersects(needs_local_write) && !self.access.contains(Access::LOCAL_WRITE) {
            let expected = "LOCAL_WRITE with REMOTE_WRITE or REMOTE_ATOMIC";
            return invalid("access", expected, &format_args!("{:?}", self.access));
        }
        Ok(())
    }

    /// The process's address for `iova`, if `len` bytes from there are within the region.
    #[inline]
    fn translate(&self, iova: u64, len: u64) -> Option<u64> {
        translate(self.iova, self.addr, self.length, iova, len)
    }
}

/// The process's address for `iova`, if `len` bytes from there are within a range of `length` bytes. The range starts
/// at `base_iova` for peers and at `base` for the process.
#[inline]
fn translate(base_iova: u64, base: u64, length: u64, iova: u64, len: u64) -> Option<u64> {
    let offset = iova.checked_sub(base_iova)?;
    let end = offset.checked_add(len)?;
    // `insert` ensured that the region does not wrap; an empty range at its end might.
    (end <= length).then(|| base.wrapping_add(offset))
}

/// Distributes keys in the table. The host chooses keys at random and peers cannot choose them, so no keyed hash is
/// needed. One multiplication (by 2^64 divided by the golden ratio) moves entropy to the high bits, too.
#[derive(Clone, Copy, Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, key: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(key)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
