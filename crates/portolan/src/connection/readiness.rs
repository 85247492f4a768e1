//! A connection's descriptor, for any runtime or event loop.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use portolan_provider::{Result, Step};

use super::established::Connection;
use super::inner::Inner;
use crate::bell::Bell;
use crate::ready_set::ReadySet;

/// A descriptor that is readable when a [`Connection`] or its transfers may have something new.
///
/// Arm it, then check the connection. If the check finds nothing, wait until the descriptor is readable, or until
/// [`Readiness::due`]. Several of these, threads and tasks may wait for one connection.
///
/// ```no_run
/// # use portolan::{Connection, Message, Result};
/// # fn wait_readable(_: impl std::os::fd::AsFd, _: Option<std::time::Instant>) {}
/// fn receive(connection: &Connection) -> Result<Message> {
///     let readiness = connection.readiness()?;
///     loop {
///         readiness.arm()?;
///         if let Some(message) = connection.try_receive()? {
///             return Ok(message);
///         }
///         // poll(2), or what a runtime has for it
///         wait_readable(&readiness, readiness.due());
///     }
/// }
/// ```
///
/// The example [`other_runtimes`](crate::examples::other_runtimes) uses it with `async-io`.
pub struct Readiness {
    connection: Arc<Inner>,
    ready: ReadySet,
    bell: Arc<Bell>,
    place: usize,
}

impl Connection {
    /// Creates a descriptor to wait on.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn readiness(&self) -> Result<Readiness> {
        let connection = Arc::clone(&self.inner);
        let ready = ReadySet::new(Step::Transfer)?;
        let bell = Arc::new(Bell::new()?);
        ready.add(connection.work.channel.descriptor()?, Step::Transfer)?;
        ready.add(connection.events.descriptor()?, Step::Transfer)?;
        ready.add(&*bell, Step::Transfer)?;
        let place = connection.work.add_bell(&bell);
        Ok(Readiness {
            connection,
            ready,
            bell,
            place,
        })
    }
}

impl Readiness {
    /// Arms the descriptor: later events make it readable. Handles the earlier ones.
    ///
    /// # Errors
    /// The connection's channels failed.
    pub fn arm(&self) -> Result<()> {
        let work = &self.connection.work;
        while work.channel.take_event()?.is_some() {}
        work.cq.arm(false)?;
        // Another waiter may be sleeping until the event that this call just took; dispatching wakes it.
        work.collect()?;
        self.connection.take_events()?;
        self.bell.arm();
        Ok(())
    }

    /// When to check again even if the descriptor is not readable: a keepalive is due, or the event that explains why the
    /// connection ended has not arrived in time. `None` otherwise.
    pub fn due(&self) -> Option<Instant> {
        let connection = &self.connection;
        let due = [connection.watch_peer(), connection.reason_due()];
        due.into_iter().flatten().min()
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness")
            .field("descriptor", &self.ready)
            .finish_non_exhaustive()
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        self.connection.work.remove_bell(self.place);
    }
}
