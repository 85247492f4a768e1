//! Memory windows: a part of shared memory for one connection's peer.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use portolan_provider::error::errno::{ENOSYS, EOPNOTSUPP};
use portolan_provider::traits::Mw;
use portolan_provider::verbs::{Access, MwBind, MwType};
use portolan_provider::{Cause, Error, Result, Step};

use super::established::Connection;
use crate::sys::{RemoteMemory, SharedMemory};
use crate::work::Transfer;

/// The bits of a window's key that binding must change.
const KEY_CHANGE: u32 = 0x55;

/// A part of [`SharedMemory`] that the peer of one connection may access, with rights of its own.
///
/// Peers of other connections cannot access it, even in the same [`Domain`](crate::Domain) and with the same key. The
/// memory needs the right `MW_BIND`. With no other right, windows are the only way to it:
///
/// ```
/// use portolan::Access;
///
/// # let (server, client) = portolan::doc_pair()?;
/// let ledger = server.share(4096, Access::MW_BIND)?;
/// let window = server.open_window(&ledger, 1024..1040, Access::REMOTE_WRITE)?;
/// let remote = window.remote(); // to be sent to the peer
/// client.write(b"paid: ten ducats".to_vec(), remote)?.wait()?;
/// window.close()?;
///
/// let mut entry = [0; 16];
/// ledger.load(1024, &mut entry);
/// assert_eq!(&entry, b"paid: ten ducats");
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// The peer's access ends when the window is closed or dropped, when the memory expires
/// ([`SharedMemory::expire_at`]), and with the connection. A later request of the peer is refused, which breaks the
/// connection, so tell the peer first. A window borrows its memory, which therefore cannot be withdrawn or dropped while
/// the window is open:
///
/// ```compile_fail,E0505
/// # use portolan::Access;
/// # let (server, client) = portolan::doc_pair()?;
/// let ledger = server.share(4096, Access::MW_BIND)?;
/// let window = server.open_window(&ledger, 0..64, Access::REMOTE_READ)?;
/// let buffer = ledger.revoke()?;
/// window.close()?;
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// A device needs windows of type 2B. Software devices have them, and so have most adapters.
#[must_use = "dropping a window closes it"]
pub struct Window<'m> {
    window: Arc<dyn Mw>,
    remote: RemoteMemory,
    memory: PhantomData<&'m SharedMemory>,
}

impl Window<'_> {
    /// The description for the peer, with the window's length and rights.
    pub fn remote(&self) -> RemoteMemory {
        self.remote
    }

    /// Ends the peer's access at once, like dropping the window.
    ///
    /// # Errors
    /// The device failed.
    pub fn close(self) -> Result<()> {
        self.window.deallocate()
    }
}

impl fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?})", self.remote)
    }
}

/// A window whose binding is posted.
pub(crate) struct Opening<'m> {
    pub(crate) binding: Transfer,
    window: Window<'m>,
}

impl<'m> Opening<'m> {
    /// The window, once the binding has ended.
    pub(crate) fn finish(self) -> Result<Window<'m>> {
        let Self { binding, window } = self;
        let bound = binding.wait();
        bound.map_err(|failed| failed.error.at(Step::BindMw))?;
        Ok(window)
    }
}

impl Connection {
    /// Opens a part of shared memory to this connection's peer alone: binds a memory window (type 2B). Waits until the
    /// window is open, which takes place after the requests posted before.
    ///
    /// # Errors
    /// `Unsupported` if the device has no such windows. `InvalidArgument` if the memory was shared without the right
    /// `MW_BIND` or belongs to another domain, the range is empty or outside the memory, or `access` is not one or
    /// several of the `REMOTE_` rights. A limit of the device or of posted sends is reached, or the memory has expired.
    /// The connection stays usable.
    pub fn open_window<'m>(
        &self,
        memory: &'m SharedMemory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Window<'m>> {
        self.start_window(memory, range, access)?.finish()
    }

    /// Posts the binding of a window.
    pub(crate) fn start_window<'m>(
        &self,
        memory: &'m SharedMemory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Opening<'m>> {
        let inner = &self.inner;
        let bound = check(memory, &range, access).and_then(|()| self.bind(memory, range, access));
        let (key, window) = bound.map_err(|error| match inner.ended() {
            Some(ended) => ended.at(Step::BindMw),
            None => inner.explain(error),
        })?;
        Ok(Opening {
            binding: Transfer::new(inner.clone(), key),
            window,
        })
    }

    fn bind<'m>(
        &self,
        memory: &'m SharedMemory,
        range: Range<usize>,
        access: Access,
    ) -> Result<(usize, Window<'m>)> {
        let work = &self.inner.work;
        let whole = self.offer(memory)?;
        let window = work.pd.alloc_mw(MwType::Type2).map_err(no_windows)?;
        let remote = RemoteMemory {
            addr: whole.addr + range.start as u64,
            length: range.len() as u64,
            rkey: window.rkey() ^ KEY_CHANGE,
            access,
        };
        let bind = MwBind {
            lkey: memory.lkey_in(&work.pd)?,
            addr: remote.addr,
            length: remote.length,
            access,
        };
        memory.opens(&window)?;
        let key = work.post_bind(&window, remote.rkey, bind, memory.keep_registered())?;
        let window = Window {
            window,
            remote,
            memory: PhantomData,
        };
        Ok((key, window))
    }
}

/// The error of a device that allocates no window of type 2.
fn no_windows(error: Error) -> Error {
    let is_limited_to_none = matches!(error.cause, Cause::LimitReached { limit: 0, .. });
    match error.errno() {
        _ if is_limited_to_none => {}
        EOPNOTSUPP | ENOSYS => {}
        _ => return error,
    }
    let what = "a memory window for one connection (type 2B) on this device";
    Error::new(Step::AllocMw, Cause::Unsupported(what))
}

/// Checks what would break the connection.
fn check(memory: &SharedMemory, range: &Range<usize>, access: Access) -> Result<()> {
    let wrong = |what, expected: &dyn fmt::Display, found: &dyn fmt::Display| {
        Err(Error::invalid(Step::BindMw, what, expected, found))
    };
    if !memory.access().contains(Access::MW_BIND) {
        let found = memory.access() - Access::LOCAL_WRITE;
        return wrong("rights of the shared memory", &"MW_BIND among them", &found);
    }
    if range.is_empty() || range.end > memory.len() {
        let expected = format_args!("1 or more of the {} bytes", memory.len());
        let found = format_args!("{}..{}", range.start, range.end);
        return wrong("range of a memory window", &expected, &found);
    }
    if access.is_empty() || !RemoteMemory::RIGHTS.contains(access) {
        let expected = format_args!("some of {}", RemoteMemory::RIGHTS);
        return wrong("rights of a memory window", &expected, &access);
    }
    if memory.is_read_only() && access != Access::REMOTE_READ {
        let expected = format_args!("{}, because the memory is only read", Access::REMOTE_READ);
        return wrong("rights of a memory window", &expected, &access);
    }
    Ok(())
}
