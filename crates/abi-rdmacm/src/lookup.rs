//! Where the look-up of a name for an id stands (`rdma_resolve_addrinfo`).

use portolan_threads::lock::{Mutex, MutexGuard};

use portolan::resolve::AddrInfo as Found;
use portolan_addrinfo::background::Outcome;
use portolan_addrinfo::names::pool::Pending;
use portolan_kernel::raw::{self, Fields};
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::event_type::{ADDRINFO_ERROR, ADDRINFO_RESOLVED};

/// An internal event's argument says in these bits what it stands for; those above have the look-up's number.
const STANDS_FOR_BITS: u32 = 8;

/// Where an id's look-up stands. The thread that looks up reaches it through the id, if that is still there.
#[derive(Default)]
pub(crate) struct Lookup(Mutex<Inner>);

/// Held while the id's channel is used or changed on the look-up's behalf.
#[derive(Default)]
pub(crate) struct Inner {
    /// Number of the current look-up, or of the last one: events of others are dropped.
    number: u64,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    /// None is under way.
    #[default]
    Idle,
    /// It is under way; dropping this handle cancels it.
    Started(#[allow(dead_code, reason = "held for its drop")] Option<Pending>),
    /// It has ended, and its event waits to be taken.
    Ended(Outcome),
    /// Its event was taken, and its result waits to be.
    Ready(Vec<Found>),
}

impl Lookup {
    /// The number of a look-up that begins.
    ///
    /// # Errors
    /// `EBUSY` while another is under way or its result was not taken.
    pub(crate) fn begin(&self) -> Result<u64> {
        let mut inner = self.0.lock();
        if !matches!(inner.stage, Stage::Idle) {
            return Err(Errno::BUSY);
        }
        inner.number += 1;
        inner.stage = Stage::Started(None);
        Ok(inner.number)
    }

    /// Keeps what ends the look-up early, unless it has ended.
    pub(crate) fn hold(&self, number: u64, pending: Option<Pending>) {
        let mut inner = self.0.lock();
        if inner.number == number
            && let Stage::Started(held) = &mut inner.stage
        {
            *held = pending;
        }
    }

    /// Cancels a look-up: its event, should it come, is dropped.
    pub(crate) fn abandon(&self, number: u64) {
        let mut inner = self.0.lock();
        if inner.number == number && !matches!(inner.stage, Stage::Ready(_)) {
            let given_up = std::mem::take(&mut inner.stage);
            drop(inner);
            drop(given_up);
        }
    }

    /// Gives the look-up up that is under way.
    pub(crate) fn give_up(&self) {
        let number = self.0.lock().number;
        self.abandon(number);
    }

    /// The look-up has ended: `write` reports it to the id's channel as the status and argument of an internal event.
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
        // The lock holds the id's channel; the event cannot be understood before it is given back.
        if write(status, arg).is_err() {
            inner.stage = Stage::Idle;
        }
        drop(inner);
        drop(former);
    }

    /// An internal event is taken: what it is to the program, or none if its look-up was given up.
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

    /// The id is about to go: nothing is written to it any more, for no look-up is under way.
    pub(crate) fn close(&self) {
        let mut inner = self.0.lock();
        let last = std::mem::take(&mut inner.stage);
        drop(inner);
        // Not under the lock: it may wait for the thread that looks up.
        drop(last);
    }

    /// Keeps the id's channel from being written to, while it is changed.
    pub(crate) fn pause(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

/// The argument of an event that was written.
pub(crate) fn argument(raw: &raw::EventResp) -> u64 {
    u64::from_bytes(&raw.param)
}
