//! Collects completions: takes them from the queue, records them in the table, and wakes whoever waits.

use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Instant;

use portolan_provider::Result;
use portolan_provider::verbs::{WcStatus, WorkCompletion};

use super::pieces::Gather;
use super::shared_receives::SHARED;
use super::slot::{MORE, Slot};
use super::table::Work;

/// Maximum number of completions per poll.
const BATCH: usize = 32;

/// What remains to be done without a lock once completions are recorded.
struct Dispatched {
    /// Work whose transfer was dropped.
    freed: Vec<Slot>,
    /// Receives to post again.
    again: Vec<Gather>,
    wakers: Vec<Waker>,
}

impl Work {
    /// Collects and dispatches completions; returns their number.
    pub(crate) fn collect(&self) -> Result<usize> {
        let mut batch = [WorkCompletion::EMPTY; BATCH];
        let mut total = 0;
        loop {
            let taken = self.collect_batch(&mut batch)?;
            total += taken;
            if taken < batch.len() {
                return Ok(total);
            }
        }
    }

    fn collect_batch(&self, batch: &mut [WorkCompletion]) -> Result<usize> {
        let collecting = match self.collecting.try_lock() {
            Some(collecting) => collecting,
            None => {
                // Fails in a forked child and within a tap, where the lock would never be released.
                self.cq.poll(&mut [])?;
                self.collecting.lock()
            }
        };
        let taken = self.cq.poll(batch)?;
        if taken > 0 {
            let dispatched = self.record(&batch[..taken]);
            drop(collecting);
            self.finish_dispatch(dispatched);
        }
        Ok(taken)
    }

    fn record(&self, completions: &[WorkCompletion]) -> Dispatched {
        let mut freed = Vec::new();
        let mut state = self.state.lock();
        for completion in completions {
            match &self.pool {
                Some(pool) if completion.wr_id & (MORE | SHARED) == SHARED => {
                    state.finish_shared(completion, pool);
                }
                _ => freed.extend(state.finish(completion)),
            }
        }
        let succeeded = |completion: &WorkCompletion| completion.status == WcStatus::Success;
        if let Some(silence) = &mut state.silence
            && completions.iter().any(succeeded)
        {
            silence.arrived(Instant::now());
        }
        if state.broken.is_some() {
            self.has_broken.store(true, Ordering::Release);
        }
        Dispatched {
            freed,
            again: std::mem::take(&mut state.unused),
            wakers: self.wake_all(&mut state),
        }
    }

    fn finish_dispatch(&self, dispatched: Dispatched) {
        for pieces in dispatched.again {
            self.repost(pieces.split().0);
        }
        dispatched.wakers.into_iter().for_each(Waker::wake);
        drop(dispatched.freed);
    }
}
