//! Posting, and posted work as a future.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use portolan_provider::{Error, Result, Step};

use super::connection::AsyncConnection;
use crate::connection::Inner;
use crate::sys::{Buffer, RemoteMemory};
use crate::work::{Done, Failed, Gather, Transfer};

/// Waits until posted work completes; its output returns the buffer.
///
/// Poll it by `&mut` to limit the wait, and wait for it again:
///
/// ```no_run
/// # use std::time::Duration;
/// # use portolan::tasks::AsyncConnection;
/// # async fn send(connection: &AsyncConnection) -> Result<(), portolan::Error> {
/// let mut sending = connection.send(connection.get_ref().buffer(64)?)?;
/// let done = match tokio::time::timeout(Duration::from_millis(5), &mut sending).await {
///     Ok(done) => done?,
///     Err(_) => {
///         eprintln!("the peer is slow");
///         sending.await?
///     }
/// };
/// # Ok(())
/// # }
/// ```
///
/// Dropping it does not stop the work: the connection keeps the buffer and the outcome for
/// [`Connection::take_abandoned`](crate::Connection::take_abandoned).
///
/// It borrows the connection. To store it or to move it to another task, take the transfer ([`Posted::into_transfer`]) and
/// wait for it there ([`AsyncConnection::finish`]).
#[must_use = "the work is posted, and its failure is lost unless it is awaited"]
pub struct Posted<'a> {
    connection: &'a AsyncConnection,
    /// `None` after the outcome was returned.
    transfer: Option<Transfer>,
    /// The wait, from the first poll that found the work incomplete. It takes nothing.
    wait: Option<Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>>,
}

impl<'a> Posted<'a> {
    pub(super) fn new(connection: &'a AsyncConnection, transfer: Transfer) -> Self {
        Self {
            connection,
            transfer: Some(transfer),
            wait: None,
        }
    }

    /// Gives the work a tag, by which the program recognizes it if this future is dropped: see [`Transfer::tagged`].
    ///
    /// ```
    /// # use portolan::tasks::AsyncConnection;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let (_server, client) = portolan::doc_pair()?;
    /// # let client = AsyncConnection::new(client)?;
    /// drop(client.send(b"ahoy".to_vec())?.tagged(7)); // for example by a `select!`
    /// let transfer = client.get_ref().take_abandoned_tagged(7).expect("the send");
    /// let buffer = client.finish(transfer).await?.buffer;
    /// # Ok::<(), portolan::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn tagged(mut self, tag: u64) -> Self {
        self.transfer = self.transfer.take().map(|transfer| transfer.tagged(tag));
        self
    }

    /// The tag ([`Posted::tagged`]); `None` after the outcome was returned.
    pub fn tag(&self) -> Option<u64> {
        self.transfer.as_ref()?.tag()
    }

    /// Why the work is still posted; see [`Transfer::delay`].
    pub fn delay(&self) -> Option<Error> {
        self.transfer.as_ref()?.delay()
    }

    /// The work, to wait for it elsewhere, for example in a thread; `None` after the outcome was returned.
    pub fn into_transfer(mut self) -> Option<Transfer> {
        self.transfer.take()
    }
}

impl Future for Posted<'_> {
    type Output = std::result::Result<Done, Failed>;

    /// # Panics
    /// If polled again after it has returned its outcome, like every async function.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let connection = self.connection;
            let Some(transfer) = &mut self.transfer else {
                panic!("the outcome was returned already");
            };
            let is_ours = transfer.is_of(&connection.get_ref().inner);
            if !is_ours {
                self.abandon();
                return Poll::Ready(Err(of_another_connection(&connection.get_ref().inner)));
            }
            if let Some(outcome) = transfer.try_take() {
                self.transfer = None;
                return Poll::Ready(outcome);
            }
            let until_done = transfer.until_done();
            let wait = self
                .wait
                .get_or_insert_with(|| Box::pin(connection.until(until_done)));
            let ended = ready!(wait.as_mut().poll(context));
            self.wait = None;
            if let Err(error) = ended {
                // The connection's channels failed. Leave the work to the connection, as a drop does.
                self.abandon();
                let (buffer, more) = (None, Box::default());
                return Poll::Ready(Err(Failed {
                    error,
                    buffer,
                    more,
                }));
            }
        }
    }
}

fn of_another_connection(waited_on: &Inner) -> Failed {
    let (expected, found) = ("one of this connection", "one of another");
    Failed {
        error: waited_on.explain(Error::invalid(Step::Transfer, "transfer", expected, found)),
        buffer: None,
        more: Box::default(),
    }
}

impl Posted<'_> {
    fn abandon(&mut self) {
        if let Some(transfer) = self.transfer.take() {
            transfer.abandon();
        }
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl fmt::Debug for Posted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted")
            .field("transfer", &self.transfer)
            .finish_non_exhaustive()
    }
}

impl AsyncConnection {
    /// Posts a send of the whole buffer. The future waits until the peer has acknowledged it.
    ///
    /// # Errors
    /// As for [`Connection::send`](crate::Connection::send).
    pub fn send(&self, buffer: impl Into<Gather>) -> std::result::Result<Posted<'_>, Failed> {
        self.get_ref().send(buffer).map(|it| self.finish(it))
    }

    /// Posts a send with immediate data; see
    /// [`Connection::send_with_immediate`](crate::Connection::send_with_immediate).
    ///
    /// # Errors
    /// As for [`Connection::send`](crate::Connection::send).
    pub fn send_with_immediate(
        &self,
        buffer: impl Into<Gather>,
        imm: u32,
    ) -> std::result::Result<Posted<'_>, Failed> {
        let posted = self.get_ref().send_with_immediate(buffer, imm);
        posted.map(|it| self.finish(it))
    }

    /// Posts a write of the whole buffer to the peer's memory. The future waits until the peer has acknowledged it.
    ///
    /// # Errors
    /// As for [`Connection::write`](crate::Connection::write).
    pub fn write(
        &self,
        buffer: impl Into<Gather>,
        to: RemoteMemory,
    ) -> std::result::Result<Posted<'_>, Failed> {
        self.get_ref().write(buffer, to).map(|it| self.finish(it))
    }

    /// Posts a write that also delivers immediate data; see
    /// [`Connection::write_with_immediate`](crate::Connection::write_with_immediate).
    ///
    /// # Errors
    /// As for [`Connection::write`](crate::Connection::write).
    pub fn write_with_immediate(
        &self,
        buffer: impl Into<Gather>,
        to: RemoteMemory,
        imm: u32,
    ) -> std::result::Result<Posted<'_>, Failed> {
        let posted = self.get_ref().write_with_immediate(buffer, to, imm);
        posted.map(|it| self.finish(it))
    }

    /// Posts a read of the peer's memory into the buffer. It may return the bytes of a write that is posted later, unless
    /// that write has a fence; see [`Connection::read`](crate::Connection::read).
    ///
    /// # Errors
    /// As for [`Connection::read`](crate::Connection::read).
    pub fn read(
        &self,
        buffer: impl Into<Gather>,
        from: RemoteMemory,
    ) -> std::result::Result<Posted<'_>, Failed> {
        self.get_ref().read(buffer, from).map(|it| self.finish(it))
    }

    /// Posts an addition to eight bytes of the peer's memory.
    ///
    /// # Errors
    /// As for [`Connection::fetch_add`](crate::Connection::fetch_add).
    pub fn fetch_add(
        &self,
        buffer: impl Into<Buffer>,
        at: RemoteMemory,
        add: u64,
    ) -> std::result::Result<Posted<'_>, Failed> {
        let posted = self.get_ref().fetch_add(buffer, at, add);
        posted.map(|it| self.finish(it))
    }

    /// Posts a compare and swap of eight bytes of the peer's memory.
    ///
    /// # Errors
    /// As for [`Connection::compare_swap`](crate::Connection::compare_swap).
    pub fn compare_swap(
        &self,
        buffer: impl Into<Buffer>,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> std::result::Result<Posted<'_>, Failed> {
        let posted = self.get_ref().compare_swap(buffer, at, compare, swap);
        posted.map(|it| self.finish(it))
    }

    /// Posts a receive into the caller's buffer. The future waits for its message.
    ///
    /// # Errors
    /// As for [`Connection::post_receive`](crate::Connection::post_receive).
    pub fn post_receive(
        &self,
        buffer: impl Into<Buffer>,
    ) -> std::result::Result<Posted<'_>, Failed> {
        self.get_ref()
            .post_receive(buffer)
            .map(|it| self.finish(it))
    }

    /// Waits until posted work of this connection completes. Work of another connection is an error (`InvalidArgument`)
    /// and is left to that one, as with [`Transfer::abandon`].
    ///
    /// ```
    /// # use portolan::tasks::AsyncConnection;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let (_server, client) = portolan::doc_pair()?;
    /// let client = AsyncConnection::new(client)?;
    /// drop(client.send(b"ahoy".to_vec())?); // for example by a `select!`
    /// let transfer = client.get_ref().take_abandoned().expect("the send");
    /// let buffer = client.finish(transfer).await?.buffer;
    /// assert_eq!(&buffer[..], b"ahoy");
    /// # Ok::<(), portolan::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn finish(&self, transfer: Transfer) -> Posted<'_> {
        Posted::new(self, transfer)
    }
}
