//! Counts of delivered and acknowledged events; destroying an id waits for the acknowledgements.

use portolan_threads::lock::{Condvar, Mutex};
use std::time::Duration;

use portolan_provider::{Cause, Error, Result, Step};

use crate::deadline;

/// The event counts of an id or a membership (`events_completed` of librdmacm).
#[derive(Debug, Default)]
pub(super) struct Counts {
    events: Mutex<Events>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Events {
    /// Events taken and not yet acknowledged.
    outstanding: u32,
    /// Number of waiting threads. Without any, the wakeup and its system call are skipped.
    waiting: u32,
}

impl Counts {
    pub(super) fn note_reported(&self) {
        self.events.lock().outstanding += 1;
    }

    pub(super) fn note_acknowledged(&self) {
        let mut events = self.events.lock();
        events.outstanding = events.outstanding.saturating_sub(1);
        if events.outstanding == 0 && events.waiting > 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until all taken events are acknowledged.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`.
    pub(super) fn wait_acknowledged(&self, step: Step, timeout: Duration) -> Result<()> {
        let mut events = self.events.lock();
        let mut deadline = None;
        while events.outstanding > 0 {
            let deadline = *deadline.get_or_insert_with(|| deadline::after(timeout));
            let left = deadline::left(deadline);
            if left.is_zero() {
                let (after_ms, retries) = (timeout.as_millis() as u64, 0);
                return Err(Error::new(step, Cause::TimedOut { after_ms, retries }));
            }
            events.waiting += 1;
            events = self.acknowledged.wait_timeout(events, left).0;
            events.waiting -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn a_waiter_is_woken_only_by_the_last_acknowledgement() {
        let counts = Counts::default();
        (0..2).for_each(|_| counts.note_reported());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| counts.wait_acknowledged(Step::DestroyId, LATE));
            thread::sleep(SOON);
            counts.note_acknowledged();
            thread::sleep(SOON);
            assert!(!waiter.is_finished());
            counts.note_acknowledged();
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(counts.events.lock().waiting, 0);
    }

    #[test]
    fn waiting_ends_at_its_limit_and_does_not_begin_if_everything_is_acknowledged() {
        let counts = Counts::default();
        counts.wait_acknowledged(Step::DestroyId, LATE).unwrap();
        counts.note_reported();
        let error = counts.wait_acknowledged(Step::DestroyId, SOON).unwrap_err();
        assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
        assert_eq!(counts.events.lock().waiting, 0);
    }
}
