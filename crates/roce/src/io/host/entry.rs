//! Guards the calls into the device: only the process that opened it may call, and not from within a
//! [`Tap`](crate::io::Tap).

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::fork::ForkGuard;

use crate::io::net::tap;

const AFTER_FORK: &str = "use of a software device in a process forked after it was opened";
const WITHIN_A_TAP: &str = "use of a software device from within its tap";

/// Every public call checks this first.
#[derive(Debug)]
pub(crate) struct Entry {
    fork: ForkGuard,
}

impl Entry {
    /// Creates the check; this process owns the device.
    pub(crate) fn new() -> Self {
        let fork = ForkGuard::new();
        Self { fork }
    }

    /// Fails in a forked child, and within a tap, which is called under the locks that the call would take.
    #[inline]
    pub(crate) fn check(&self, step: Step) -> Result<()> {
        match self.is_plain() {
            true => Ok(()),
            false => self.look(step),
        }
    }

    /// Whether [`check`](Self::check) needs no second look: it does not fail.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.fork.is_surely_owner() && !tap::was_ever_plugged()
    }

    #[cold]
    fn look(&self, step: Step) -> Result<()> {
        let why = if !self.fork.is_owner() {
            AFTER_FORK
        } else if tap::is_within() {
            WITHIN_A_TAP
        } else {
            return Ok(());
        };
        Err(Error::new(step, Cause::Unsupported(why)))
    }

    /// Whether this process opened the device. In a forked child all state is a copy, whose locks may have been held
    /// at the fork.
    ///
    /// Use this instead of `check` for work that must happen even within a tap.
    pub(crate) fn is_owner(&self) -> bool {
        self.fork.is_owner()
    }
}
