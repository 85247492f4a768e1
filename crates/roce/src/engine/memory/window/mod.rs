//! Memory windows: rights on a part of a region, granted and revoked without registration (IBTA 10.6.7).

use alloc::vec::Vec;

use portolan_provider::verbs::{Access, Denial, MwBind, MwType, RefusedMemory};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;

use super::{MemoryTable, PdId, RemoteAccessError, denial_of, translate};

/// Number of bits of a window's key that its owner changes with each binding; the other bits are constant (IBTA 3.5.3).
const KEY_BITS: u32 = 8;

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pd: PdId,
    mw_type: MwType,
    rkey: u32,
    bound: Option<Bound>,
}

/// The binding of a window.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Key of the underlying region.
    lkey: u32,
    iova: u64,
    /// Address of its first byte in this process.
    addr: u64,
    length: u64,
    access: Access,
    /// The queue pair of a type 2 window.
    qpn: Qpn,
}

impl Window {
    /// Whether a queue pair with this protection domain may use it.
    fn is_for(&self, (pd, qpn): (PdId, Qpn), bound: &Bound) -> bool {
        self.pd == pd && (self.mw_type == MwType::Type1 || bound.qpn == qpn)
    }
}

/// A change of the memory table that a queue pair requests, in the order of its work. The host applies it with
/// [`MemoryTable::apply`] and returns the result
/// ([`QueuePair::complete_memory_operation`](crate::engine::QueuePair::complete_memory_operation)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOperation {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair.
    pub qpn: Qpn,
    /// The current key of the window.
    pub rkey: u32,
    /// The change.
    pub change: WindowChange,
}

/// A change of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowChange {
    /// Binds the window to other memory, under a new key.
    Bind {
        /// The new key.
        new_rkey: u32,
        /// The memory and rights; a length of 0 removes the binding.
        bind: MwBind,
    },
    /// Removes the binding.
    Invalidate,
}

/// Why a window may not be bound or invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// No window has the key.
    #[error("no memory window has this key")]
    UnknownKey,
    /// Window, region and queue pair belong to different protection domains.
    #[error("memory window, region and queue pair belong to different protection domains")]
    ProtectionDomain,
    /// A type 2 window is already bound.
    #[error("the memory window is bound: it must be invalidated first")]
    Bound,
    /// The new key differs in more than its lowest byte, or is the current one.
    #[error("the new key must differ from the current one in its lowest byte only")]
    NewKey,
    /// A type 2 window was to be bound to an empty range.
    #[error("a memory window of type 2 must be invalidated, not bound to an empty range")]
    Empty,
    /// No region has the key.
    #[error("no memory region has this local key")]
    Region,
    /// The region does not allow windows, or not the requested rights.
    #[error("the memory region does not allow MW_BIND or the requested rights")]
    RegionAccess,
    /// The range is not within the region.
    #[error("the range is not within the memory region")]
    Range,
    /// Only a type 2 window that is bound to this queue pair can be invalidated.
    #[error("the key is not that of a type 2 memory window bound to this queue pair")]
    NotInvalidatable,
}

impl MemoryTable {
    /// Adds an unbound window, under a key whose lowest byte will change.
    ///
    /// # Errors
    /// `LimitReached` if there are `limit` windows; `InvalidArgument` if the key of a region or window differs only in
    /// the lowest byte (draw another).
    pub fn alloc_window(
        &mut self,
        rkey: u32,
        pd: PdId,
        mw_type: MwType,
        limit: usize,
    ) -> Result<()> {
        if self.windows.len() >= limit {
            let (what, limit) = ("memory windows", limit as u64);
            return Err(Error::new(
                Step::AllocMw,
                Cause::LimitReached { what, limit },
            ));
        }
        let own = rkey >> KEY_BITS;
        let mut keys = (0..1 << KEY_BITS).map(|low| own << KEY_BITS | low);
        if self.windows.contains_key(&own) || keys.any(|key| self.regions.contains_key(&key)) {
            let expected = "a key not in use";
            return Err(Error::invalid(Step::AllocMw, "key", expected, rkey));
        }
        let window = Window {
            pd,
            mw_type,
            rkey,
            bound: None,
        };
        self.windows.insert(own, window);
        Ok(())
    }

    /// Removes the window with this key; the lowest byte is ignored.
    pub fn dealloc_window(&mut self, rkey: u32) {
        if let Some(window) = self.windows.remove(&(rkey >> KEY_BITS)) {
            self.release(window.bound);
        }
    }

    /// Whether a window may get the key.
    pub(super) fn is_windows(&self, key: u32) -> bool {
        self.windows.contains_key(&(key >> KEY_BITS))
    }

    /// Applies an operation of a queue pair.
    ///
    /// # Errors
    /// [`WindowError`]. An error changes nothing.
    pub fn apply(&mut self, operation: &MemoryOperation) -> core::result::Result<(), WindowError> {
        match operation.change {
            WindowChange::Bind { new_rkey, bind } => self.bind(operation, new_rkey, &bind),
            WindowChange::Invalidate => {
                self.check_invalidate(operation.pd, operation.qpn, operation.rkey)?;
                let own = operation.rkey >> KEY_BITS;
                let bound = self.windows.get_mut(&own).and_then(|it| it.bound.take());
                self.release(bound);
                Ok(())
            }
        }
    }

    /// Checks whether a queue pair, or its peer by a send, may invalidate a key (IBTA 10.6.7.2.4). It must be that of a
    /// type 2 window bound to this queue pair.
    pub(crate) fn check_invalidate(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: u32,
    ) -> core::result::Result<(), WindowError> {
        let window = self.window(rkey).ok_or(WindowError::UnknownKey)?;
        let is_bound_here = window.bound.is_some_and(|bound| bound.qpn == qpn);
        if window.pd != pd || window.mw_type != MwType::Type2 || !is_bound_here {
            return Err(WindowError::NotInvalidatable);
        }
        Ok(())
    }

    fn bind(
        &mut self,
        operation: &MemoryOperation,
        new_rkey: u32,
        bind: &MwBind,
    ) -> core::result::Result<(), WindowError> {
        let window = *self.window(operation.rkey).ok_or(WindowError::UnknownKey)?;
        if window.pd != operation.pd {
            return Err(WindowError::ProtectionDomain);
        }
        if new_rkey >> KEY_BITS != window.rkey >> KEY_BITS || new_rkey == window.rkey {
            return Err(WindowError::NewKey);
        }
        match window.mw_type {
            MwType::Type2 if window.bound.is_some() => return Err(WindowError::Bound),
            MwType::Type2 if bind.length == 0 => return Err(WindowError::Empty),
            _ => {}
        }
        let bound = match bind.length {
            0 => None,
            _ => Some(self.open(operation, bind)?),
        };
        if let Some(held) = self.regions.get_mut(&bind.lkey)
            && bound.is_some()
        {
            held.windows += 1;
        }
        self.release(window.bound);
        let window = Window {
            rkey: new_rkey,
            bound,
            ..window
        };
        self.windows.insert(new_rkey >> KEY_BITS, window);
        Ok(())
    }

    /// Checks the range of a region that a window is to be bound to.
    fn open(
        &self,
        operation: &MemoryOperation,
        bind: &MwBind,
    ) -> core::result::Result<Bound, WindowError> {
        let held = self.regions.get(&bind.lkey).ok_or(WindowError::Region)?;
        let region = &held.region;
        if region.pd != operation.pd {
            return Err(WindowError::ProtectionDomain);
        }
        let mut needed = Access::MW_BIND;
        if bind
            .access
            .intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        {
            // Peers must not write what the owner may not write (IBTA C10-74).
            needed |= Access::LOCAL_WRITE;
        }
        if !region.access.contains(needed) {
            return Err(WindowError::RegionAccess);
        }
        let addr = region
            .translate(bind.addr, bind.length)
            .ok_or(WindowError::Range)?;
        Ok(Bound {
            lkey: bind.lkey,
            iova: bind.addr,
            addr,
            length: bind.length,
            access: bind.access,
            qpn: operation.qpn,
        })
    }

    /// A queue pair was destroyed and its number may be reused: unbinds the type 2 windows bound to it. Linear in the
    /// number of windows.
    pub fn unbind_queue_pair(&mut self, qpn: Qpn) {
        let mut released = Vec::new();
        for window in self.windows.values_mut() {
            if window.mw_type == MwType::Type2 {
                released.extend(window.bound.take_if(|bound| bound.qpn == qpn));
            }
        }
        released
            .into_iter()
            .for_each(|bound| self.release(Some(bound)));
    }

    /// A region was removed: unbinds its windows.
    pub(super) fn unbind_all(&mut self, lkey: u32) {
        for window in self.windows.values_mut() {
            window.bound.take_if(|bound| bound.lkey == lkey);
        }
    }

    /// A window is not bound to its region any more.
    fn release(&mut self, bound: Option<Bound>) {
        if let Some(bound) = bound
            && let Some(held) = self.regions.get_mut(&bound.lkey)
        {
            held.windows = held.windows.saturating_sub(1);
        }
    }

    fn window(&self, rkey: u32) -> Option<&Window> {
        let window = self.windows.get(&(rkey >> KEY_BITS))?;
        (window.rkey == rkey).then_some(window)
    }

    /// The remote access of [`check_remote`](Self::check_remote) through a window.
    pub(super) fn check_window(
        &self,
        (pd, qpn): (PdId, Qpn),
        rkey: u32,
        iova: u64,
        len: u32,
        access: Access,
    ) -> core::result::Result<u64, RemoteAccessError> {
        let (window, bound) = self.bound_window(rkey).ok_or(RemoteAccessError)?;
        if !window.is_for((pd, qpn), bound) || !bound.access.contains(access) {
            return Err(RemoteAccessError);
        }
        translate(bound.iova, bound.addr, bound.length, iova, len.into()).ok_or(RemoteAccessError)
    }

    /// Why [`check_window`](Self::check_window) refused memory.
    pub(super) fn denial_by_window(&self, user: (PdId, Qpn), memory: &RefusedMemory) -> Denial {
        match self.bound_window(memory.rkey) {
            None => Denial::NoKey,
            Some((window, bound)) => {
                let reach = (bound.iova, bound.length);
                denial_of(window.is_for(user, bound), reach, memory)
            }
        }
    }

    fn bound_window(&self, rkey: u32) -> Option<(&Window, &Bound)> {
        let window = self.window(rkey)?;
        Some((window, window.bound.as_ref()?))
    }
}

#[cfg(test)]
mod tests;
