//! The state of an id's look-up of names (`rdma_resolve_addrinfo`).

use portolan_threads::lock::{Mutex, MutexGuard};

use portolan::resolve::AddrInfo as Found;
use portolan_addrinfo::background::Outcome;
use portolan_addrinfo::names::pool::Pending;
use portolan_kernel::raw::{self, Fields};
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::event_type::{ADDRINFO_ERROR, ADDRINFO_RESOLVED};

/// The low bits of an internal event's argument are its meaning; the bits above are the look-up's number.
const STANDS_FOR_BITS: u32 = 8;

/// The state of an id's look-up. The thread that looks up accesses it through the id, if the id still exists.
#[derive(Default)]
pub(crate) struct Lookup(Mutex<Inner>);

/// Locked while the id's channel is used for the look-up, or changed.
#[derive(Default)]
pub(crate) struct Inner {
    /// The number of the current or last look-up. Events of other look-ups are dropped.
    number: u64,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    /// There is no look-up.
    #[default]
    Idle,
    /// It is running. Dropping this handle cancels it.
    Started(#[allow(dead_code, reason = "held for its drop")] Option<Pending>),
    /// It has ended, and its event is not taken yet.
    Ended(Outcome),
    /// Its event is taken, but its result is not.
    Ready(Vec<Found>),
}

impl Lookup {
    /// Starts a look-up and returns its number.
    ///
    /// # Errors
    /// `EBUSY` while another one runs or its result is not taken.
    pub(crate) fn begin(&self) -> Result<u64> {
        let mut inner = self.0.lock();
        if !matches!(inner.stage, Stage::Idle) {
            return Err(Errno::BUSY);
        }
        inner.number += 1;
        inner.stage = Stage::Started(None);
        Ok(inner.number)
    }

    /// Stores the handle that cancels the look-up, unless it has ended.
    pub(crate) fn hold(&self, number: u64, pending: Option<Pending>) {
        let mut inner = self.0.lock();
        if inner.number == number
            && let Stage::Started(held) = &mut inner.stage
        {
            *held = pending;
        }
    }

    /// Cancels a look-up. If its event still arrives, it is dropped.
    pub(crate) fn abandon(&self, number: u64) {
        let mut inner = self.0.lock();
        if inner.number == number && !matches!(inner.stage, Stage::Ready(_)) {
            let given_up = std::mem::take(&mut inner.stage);
            drop(inner);
            drop(given_up);
        }
    }

    /// Cancels the running look-up.
    pub(crate) fn give_up(&self) {
        let number = self.0.lock().number;
        self.abandon(number);
    }

    /// Ends the look-up. `write` reports it to the id's channel, as the status and argument of an internal event.
    pub(crate) fn end(
        &self,
        number: u64,
        outcome: Outcome,
        write: impl FnOnce(i32, u64) -> Result<()>,
    ) {
        let mut inner = self.0.lock();
        if inner.number != number || !matches!(inner.stage, Stage::Started(_)) {
            return;
        }
        let (event, status) = match &outcome {
            Ok(_) => (ADDRINFO_RESOLVED, 0),
            Err(error) => (ADDRINFO_ERROR, -error.errno()),
        };
        let former = std::mem::replace(&mut inner.stage, Stage::Ended(outcome));
        let arg = number << STANDS_FOR_BITS | u64::from(event);
        // The lock protects the id's channel. No thread can interpret the event before it is released.
        if write(status, arg).is_err() {
            inner.stage = Stage::Idle;
        }
        drop(inner);
        drop(former);
    }

    /// An internal event was taken. Returns the event for the program, or `None` if its look-up was cancelled.
    pub(crate) fn take_event(&self, arg: u64) -> Option<u32> {
        let mut inner = self.0.lock();
        if inner.number != arg >> STANDS_FOR_BITS {
            return None;
        }
        match std::mem::take(&mut inner.stage) {
            Stage::Ended(Ok(found)) => {
                inner.stage = Stage::Ready(found);
                Some(ADDRINFO_RESOLVED)
            }
            Stage::Ended(Err(_)) => Some(ADDRINFO_ERROR),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    pub(crate) fn take_result(&self) -> Option<Vec<Found>> {
        let mut inner = self.0.lock();
        match std::mem::take(&mut inner.stage) {
            Stage::Ready(found) => Some(found),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// The id is about to be destroyed. Ends the look-up, so that nothing is written to the id's channel any more.
    pub(crate) fn close(&self) {
        let mut inner = self.0.lock();
        let last = std::mem::take(&mut inner.stage);
        drop(inner);
        // Drop it without the lock: it may wait for the thread that looks up.
        drop(last);
    }

    /// Blocks writes to the id's channel while the channel is changed.
    pub(crate) fn pause(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

/// The argument of a written event.
pub(crate) fn argument(raw: &raw::EventResp) -> u64 {
    u64::from_bytes(&raw.param)
}
