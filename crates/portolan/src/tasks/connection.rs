//! Connections for tasks.

use std::ops::Range;
use std::sync::Arc;

use ::tokio::io::unix::AsyncFd;
use portolan_provider::traits::CompChannel;
use portolan_provider::verbs::Access;
use portolan_provider::{Result, Step};

use super::runtime::{Watched, reached, runtime_error, watch};
use crate::cm::EventChannel;
use crate::connection::{Connection, Inner, Window};
use crate::sys::SharedMemory;
use crate::work::Message;

/// A [`Connection`] for tokio tasks.
///
/// ```
/// use portolan::tasks::AsyncConnection;
///
/// # let (server, client) = portolan::doc_pair()?;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let (server, client) = (AsyncConnection::new(server)?, AsyncConnection::new(client)?);
/// client.send(b"ahoy".to_vec())?.await?;
/// assert_eq!(&server.receive().await?[..], b"ahoy");
/// # Ok::<(), portolan::Error>(())
/// # })?;
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// [`Connection`] has more ways to post work, such as `send_prefix` and `request`. They do not wait, so call them by
/// [`AsyncConnection::get_ref`], and await the transfer with [`AsyncConnection::finish`]:
///
/// ```
/// # use portolan::tasks::AsyncConnection;
/// # let (server, client) = portolan::doc_pair()?;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let (server, client) = (AsyncConnection::new(server)?, AsyncConnection::new(client)?);
/// let transfer = client.get_ref().send_prefix(b"ahoy there".to_vec(), 4)?;
/// client.finish(transfer).await?;
/// assert_eq!(&server.receive().await?[..], b"ahoy");
///
/// let transfer = client.get_ref().request().fence().immediate(7).send(b"seven".to_vec())?;
/// client.finish(transfer).await?;
/// assert_eq!(server.receive().await?.immediate(), Some(7));
///
/// let mut batch = client.get_ref().batch();
/// batch.send(b"one".to_vec())?;
/// batch.send(b"two".to_vec())?;
/// for transfer in batch.post()? {
///     client.finish(transfer).await?;
/// }
/// assert_eq!(&server.receive().await?[..], b"one");
/// # Ok::<(), portolan::Error>(())
/// # })?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncConnection {
    connection: Connection,
    completions: AsyncFd<Watched<Arc<dyn CompChannel>>>,
    events: AsyncFd<Watched<EventChannel>>,
}

impl AsyncConnection {
    /// Registers a connection with the current runtime.
    ///
    /// # Errors
    /// There is no runtime (`InvalidState`), or it cannot watch the connection's descriptors.
    pub fn new(connection: Connection) -> Result<Self> {
        let completions = watch(connection.inner.work.channel.clone(), Step::Watch)?;
        let events = watch(connection.inner.events.clone(), Step::Watch)?;
        Ok(Self {
            connection,
            completions,
            events,
        })
    }

    /// The underlying connection, for operations that do not wait.
    pub fn get_ref(&self) -> &Connection {
        &self.connection
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection ended and all messages are taken.
    pub async fn receive(&self) -> Result<Message> {
        self.until(|| self.connection.next_arrival()).await?
    }

    /// Waits until the connection has ended at both sides: the peer has disconnected, or has confirmed this side's
    /// [`Connection::disconnect`].
    ///
    /// # Errors
    /// The connection's channels failed.
    pub async fn disconnected(&self) -> Result<()> {
        self.until(|| self.connection.inner.is_disconnected().then_some(()))
            .await
    }

    /// Opens a part of shared memory to this connection's peer alone; see
    /// [`Connection::open_window`]. If the future is dropped, the window closes as soon as it is open.
    ///
    /// # Errors
    /// As for [`Connection::open_window`].
    pub async fn open_window<'m>(
        &self,
        memory: &'m SharedMemory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Window<'m>> {
        let opening = self.connection.start_window(memory, range, access)?;
        self.until(opening.binding.until_done()).await?;
        opening.finish()
    }

    /// Disconnects and waits for the peer's confirmation. Posted work is flushed: await the sends first that the peer is
    /// to get. [`Connection::close`] describes when a peer confirms.
    ///
    /// If the future is dropped, the connection ends all the same, and another call waits for the confirmation again. Use
    /// the runtime's timeouts to limit the wait.
    ///
    /// ```
    /// # use portolan::tasks::AsyncConnection;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let (server, client) = portolan::doc_pair()?;
    /// # let client = AsyncConnection::new(client)?;
    /// client.send(b"the last words".to_vec())?.await?;
    /// client.close().await?;
    /// # assert_eq!(&server.receive()?[..], b"the last words");
    /// # Ok::<(), portolan::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The provider failed. It is not an error if the connection has already ended.
    pub async fn close(&self) -> Result<()> {
        self.connection.disconnect()?;
        self.disconnected().await
    }

    /// Waits until `ready` returns a value. Completions that another task collects wake this task
    /// too.
    pub(super) async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        let inner: &Inner = &self.connection.inner;
        loop {
            let watch = inner.watch_peer();
            let turn = inner.work.turn();
            inner.work.collect()?;
            if let Some(found) = ready() {
                return Ok(found);
            }
            inner.work.cq.arm(false)?;
            if inner.work.collect()? > 0 || inner.take_events()? {
                continue;
            }
            let due = [watch, inner.reason_due()].into_iter().flatten().min();
            ::tokio::select! {
                () = inner.work.turned_since(turn) => {}
                due = reached(due, Step::Transfer) => due?,
                readable = self.completions.readable() => {
                    let mut guard = readable.map_err(runtime_error)?;
                    while inner.work.channel.take_event()?.is_some() {}
                    guard.clear_ready();
                }
                readable = self.events.readable() => {
                    let mut guard = readable.map_err(runtime_error)?;
                    inner.take_events()?;
                    guard.clear_ready();
                }
            }
        }
    }
}
