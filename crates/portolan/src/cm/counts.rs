//! Events given to the user, and those acknowledged: what destroying an id waits for.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use portolan_provider::{Cause, Error, Result, Step};

use crate::{deadline, lock};

/// The events of an id or of a membership (`events_completed` of librdmacm).
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Taken, and not yet acknowledged.
    outstanding: Mutex<u32>,
    acknowledged: Condvar,
}

impl Counts {
    pub(super) fn note_reported(&self) {
        *lock(&self.outstanding) += 1;
    }

    pub(super) fn note_acknowledged(&self) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(1);
        self.acknowledged.notify_all();
    }

    /// Waits until every event that was taken is acknowledged.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`.
    pub(super) fn wait_acknowledged(&self, step: Step, timeout: Duration) -> Result<()> {
        let deadline = deadline::after(timeout);
        let mut outstanding = lock(&self.outstanding);
        while *outstanding > 0 {
            let left = deadline::left(deadline);
            if left.is_zero() {
                let (after_ms, retries) = (timeout.as_millis() as u64, 0);
                return Err(Error::new(step, Cause::TimedOut { after_ms, retries }));
            }
            outstanding = self
                .acknowledged
                .wait_timeout(outstanding, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }
}
