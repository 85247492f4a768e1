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
        if !self.fork.is_owner() {
            Err(unsupported(step, AFTER_FORK))
        } else if tap::is_within() {
            Err(unsupported(step, WITHIN_A_TAP))
        } else {
            Ok(())
        }
    }

    /// Whether this process opened the device. In a forked child all state is a copy, whose locks may have been held
    /// at the fork.
    ///
    /// Use this instead of `check` for work that must happen even within a tap.
    pub(crate) fn is_owner(&self) -> bool {
        self.fork.is_owner()
    }
}

#[cold]
fn unsupported(step: Step, why: &'static str) -> Error {
    Error::new(step, Cause::Unsupported(why))
}
