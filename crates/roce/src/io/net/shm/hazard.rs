//! Withdrawal of rights that another process may be using.
//!
//! The user of a right first announces the use ([`Hazard`]), and then checks that the right still exists ([`Version`]).
//! The owner first withdraws the right, and then looks for announcements. In every order, one of the two sees the other
//! (Dekker's algorithm). So after a withdrawal without announcements, the right is unused. A model checker verifies
//! every order (`tests/shm_cursor.rs`).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_exchange};

/// The right that one thread of a process uses; 0 if none.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hazard(AtomicU64);

/// Whether a right exists: an odd number while it does. Each change increments it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Version(AtomicU32);

impl Hazard {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces a use, unless another thread announces one here. Returns whether it did. Check that the right still
    /// exists after this.
    #[inline]
    pub(crate) fn announce(&self, what: u64) -> bool {
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        let is_free = self.0.load(Ordering::Relaxed) == 0
            && self.0.compare_exchange(0, what, success, failure).is_ok();
        if is_free {
            fence_after_exchange();
        }
        is_free
    }

    /// Ends the use.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// The announced right, for the owner that has withdrawn it.
    #[inline]
    pub(crate) fn announced(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Version {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The version, if the right exists. Read what it covers after this.
    #[inline]
    pub(crate) fn given(&self) -> Option<u32> {
        let version = self.0.load(Ordering::Acquire);
        (!version.is_multiple_of(2)).then_some(version)
    }

    /// Whether the values read since [`given`](Self::given) are consistent, and other memory read since then was
    /// covered by the right.
    #[inline]
    pub(crate) fn is_still(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }

    /// Grants the right. The caller is its only writer, and has written what it covers.
    pub(crate) fn give(&self) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version | 1, Ordering::Release);
    }

    /// Withdraws the right. Look for announcements after this.
    pub(crate) fn take_back(&self) {
        let version = self.0.load(Ordering::Relaxed);
        if !version.is_multiple_of(2) {
            self.0.store(version.wrapping_add(1), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}
