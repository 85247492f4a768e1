//! Queue pairs that heard their peers before the connection manager knew of it. It is told by the
//! progress thread: whoever receives a packet holds locks that it must not be called with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use portolan_wire::Qpn;

/// The queue pairs of which the connection manager is still to be told; each is there once at most in
/// a connection's life.
#[derive(Debug, Default)]
pub(super) struct Heard {
    any: AtomicBool,
    queue_pairs: Mutex<Vec<Qpn>>,
}

impl Heard {
    /// Notes a queue pair. The progress thread is to be woken afterwards.
    pub(super) fn note(&self, qpn: Qpn) {
        let mut queue_pairs = self
            .queue_pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        queue_pairs.push(qpn);
        self.any.store(true, Ordering::Release);
    }

    /// Takes all.
    pub(super) fn take(&self) -> Vec<Qpn> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut queue_pairs = self
            .queue_pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *queue_pairs)
    }
}
