//! Connections for tasks.

use ::tokio::io::unix::AsyncFd;
use portolan_provider::{Result, Step};

use super::runtime::{CompletionFd, Watched, reached, runtime_error, watch};
use crate::cm::EventChannel;
use crate::connection::{Connection, Inner};
use crate::work::Message;

/// A [`Connection`] for tokio tasks.
#[derive(Debug)]
pub struct AsyncConnection {
    connection: Connection,
    completions: AsyncFd<Watched<CompletionFd>>,
    events: AsyncFd<Watched<EventChannel>>,
}

impl AsyncConnection {
    /// Registers a connection with the current runtime.
    ///
    /// # Errors
    /// There is no runtime (`InvalidState`), or it cannot watch the connection's descriptors.
    pub fn new(connection: Connection) -> Result<Self> {
        let channel = CompletionFd(connection.inner.work.channel.clone());
        let completions = watch(Watched(channel), Step::Watch)?;
        let events = watch(Watched(connection.inner.events.clone()), Step::Watch)?;
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
