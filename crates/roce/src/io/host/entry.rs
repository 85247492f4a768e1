//! Who may call the device: the process that opened it, but not from within a [`Tap`](crate::io::Tap).

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::fork::ForkGuard;

use crate::io::net::tap;

const AFTER_FORK: &str = "use of a software device in a process forked after it was opened";
const WITHIN_A_TAP: &str = "use of a software device from within its tap";

/// Looked at first by whatever a program can call.
#[derive(Debug)]
pub(crate) struct Entry {
    fork: ForkGuard,
}

impl Entry {
    /// The device is this process's.
    pub(crate) fn new() -> Self {
        let fork = ForkGuard::new();
        Self { fork }
    }

    /// Fails in a process that was forked off since, and within a tap: the locks are held there that the call would take.
    #[inline]
    pub(crate) fn check(&self, step: Step) -> Result<()> {
        let why = if !self.fork.is_owner() {
            AFTER_FORK
        } else if tap::is_within() {
            WITHIN_A_TAP
        } else {
            return Ok(());
        };
        Err(Error::new(step, Cause::Unsupported(why)))
    }

    /// Whether the device is this process's: in a forked child everything is a copy, whose locks may have been held at the fork.
    /// For what has to be done even within a tap.
    pub(crate) fn is_owner(&self) -> bool {
        self.fork.is_owner()
    }
}
