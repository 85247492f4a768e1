//! Withdraws shared memory.

use std::fmt;
use std::sync::Arc;

use portolan_provider::verbs::Access;
use portolan_provider::{Cause, Error, Step};

use super::buffer::Buffer;
use super::shared::SharedMemory;

/// Shared memory that could not be withdrawn ([`SharedMemory::revoke`]).
///
/// ```
/// use portolan::Access;
/// # let (server, client) = portolan::doc_pair()?;
///
/// let memory = server.share(16, Access::REMOTE_WRITE)?;
/// // It converts into the error, for `?`.
/// let buffer = memory.revoke()?;
/// # drop((buffer, client));
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct NotRevoked {
    /// The cause.
    pub error: Error,
    /// The memory, if it is still shared: it is in use (`InUse`). `None` if the device failed.
    pub memory: Option<SharedMemory>,
}

impl From<Error> for NotRevoked {
    fn from(error: Error) -> Self {
        let memory = None;
        Self { error, memory }
    }
}

impl fmt::Display for NotRevoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotRevoked {
    /// The cause of [`NotRevoked::error`], whose text this type prints.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<NotRevoked> for std::io::Error {
    fn from(failed: NotRevoked) -> Self {
        failed.error.into()
    }
}

impl From<NotRevoked> for Error {
    fn from(failed: NotRevoked) -> Self {
        failed.error
    }
}

impl SharedMemory {
    /// Withdraws the peers' rights on every device. Returns the memory as an ordinary buffer. If a process of this host
    /// was stopped in the middle of a write to memory of the library's, it returns a copy instead.
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(16, Access::REMOTE_WRITE)?;
    /// client.write(b"ahoy".to_vec(), memory.remote())?.wait()?;
    /// let buffer = memory.revoke()?;
    /// assert_eq!(&buffer[..4], b"ahoy");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InUse` if a connection still has to bind a window on it: the opening of the window was cancelled
    /// (`AsyncConnection::open_window`), but not what was posted. The error returns the memory.
    /// [`Connection::revoke`](crate::Connection::revoke) also sees a binding that has ended since the connection was
    /// last used. A region cannot be deregistered, or cannot be registered again for local use.
    pub fn revoke(mut self) -> Result<Buffer, NotRevoked> {
        let Some(backing) = Arc::get_mut(&mut self.backing) else {
            return Err(self.in_use());
        };
        backing.restrict(Access::LOCAL_WRITE)?;
        if backing.is_exclusive() {
            return Ok(Buffer::whole(self.backing));
        }
        let mut buffer = Buffer::new(&self.pd, self.len())?;
        self.load(0, &mut buffer);
        Ok(buffer)
    }

    fn in_use(self) -> NotRevoked {
        let cause = Cause::InUse {
            what: "shared memory",
            by: "bindings of windows that are not complete",
            count: Arc::strong_count(&self.backing).saturating_sub(1) as u64,
        };
        NotRevoked {
            error: Error::new(Step::RegisterMemory, cause),
            memory: Some(self),
        }
    }
}
