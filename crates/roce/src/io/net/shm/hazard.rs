//! Rights that are taken back while another process may be using them.
//!
//! Who has a right announces that it uses it ([`Hazard`]), and then looks whether it still has it ([`Version`]). Who
//! takes it back does that first, and then looks whether somebody has announced to use it: whatever the order, one of
//! the two sees the other (Dekker's algorithm). So once a right is taken back and no announcement of it is left, nobody
//! uses it any more. A model checker goes through every order (`tests/shm_cursor.rs`).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// What one thread of a process is using; 0 if nothing.
#[derive(Debug)]
pub(crate) struct Hazard(AtomicU64);

/// Whether a right is given, and how often that has changed: odd while it is.
#[derive(Debug)]
pub(crate) struct Version(AtomicU32);

impl Hazard {
    #[cfg(test)]
    #[allow(dead_code, reason = "for the model checker's tests")]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces what is about to be used. Look whether the right is still given after this.
    #[inline]
    pub(crate) fn announce(&self, what: u64) {
        self.0.store(what, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It is used no more.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// What is being used, for who has taken it back.
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

    /// The version, if the right is given. What it covers is read after this.
    #[inline]
    pub(crate) fn given(&self) -> Option<u32> {
        let version = self.0.load(Ordering::Acquire);
        (!version.is_multiple_of(2)).then_some(version)
    }

    /// Whether what was read since [`given`](Self::given) belongs together.
    #[inline]
    pub(crate) fn is_still(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }

    /// Gives the right. The caller is the only one that changes it, and has written what it covers.
    pub(crate) fn give(&self) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version | 1, Ordering::Release);
    }

    /// Takes it back. Look for announcements after this.
    pub(crate) fn take_back(&self) {
        let version = self.0.load(Ordering::Relaxed);
        if !version.is_multiple_of(2) {
            self.0.store(version.wrapping_add(1), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}
