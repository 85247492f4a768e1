//! Queue pairs that owe their peers an answer, or the last packets of a stream.
//!
//! A poller should have what arrived at once, and the program's own answer should go out before the
//! acknowledgement of what it answers. So a queue pair driven by a poller keeps its acknowledgement
//! until its owner posts or polls again; the progress thread sees to it that none is kept for long. So it is with the
//! last few packets of a stream, which may become one datagram with those that are posted next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use portolan_wire::Qpn;

use super::qp::State;
use super::shared::Shared;

/// The queue pairs that owe an answer.
#[derive(Debug, Default)]
pub(super) struct Owed {
    any: AtomicBool,
    queue_pairs: Mutex<Vec<Qpn>>,
}

impl Owed {
    /// Notes a queue pair, whose lock the caller holds.
    pub(super) fn note(&self, qpn: Qpn, state: &mut State) {
        if std::mem::replace(&mut state.owes, true) {
            return;
        }
        let mut queue_pairs = self
            .queue_pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        queue_pairs.push(qpn);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Has all of them answer. The caller holds no lock.
    #[inline]
    pub(super) fn settle(&self, shared: &Shared) {
        if self.any.load(Ordering::Acquire) {
            self.settle_all(shared);
        }
    }

    fn settle_all(&self, shared: &Shared) {
        loop {
            let next = {
                let mut queue_pairs = self
                    .queue_pairs
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let next = queue_pairs.pop();
                if next.is_none() {
                    self.any.store(false, Ordering::Release);
                }
                next
            };
            let Some(qpn) = next else { return };
            if let Some(qp) = shared.qps.find(qpn) {
                let mut state = qp.lock();
                // It may have answered meanwhile, with something it sent.
                if state.owes && !state.closed {
                    shared.settle(&qp, &mut state, shared.clock.now());
                }
            }
        }
    }
}
