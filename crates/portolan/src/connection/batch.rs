//! Several requests posted with one doorbell.

use std::fmt;

use portolan_provider::Error;

use super::established::Connection;
use super::posting::Request;
use crate::sys::RemoteMemory;
use crate::work::{Failed, Gather, Item, Transfer};

/// Requests that are posted together, in the order in which they were added; see [`Connection::batch`].
///
/// ```
/// # let (server, client) = portolan::doc_pair()?;
///
/// let mut batch = client.batch();
/// for number in 0..8u8 {
///     batch.send(vec![number])?;
/// }
/// for sending in batch.post()? {
///     sending.wait()?;
/// }
/// # drop(server);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is posted yet"]
pub struct Batch<'a> {
    /// The options of the request that is added next.
    next: Request<'a>,
    connection: &'a Connection,
    items: Vec<Item>,
}

/// A batch with requests that were not posted.
///
/// ```
/// use portolan::Options;
/// # use portolan::{Connector, Listener};
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?;
/// # let server = std::thread::spawn(move || listener.accept()?.accept());
///
/// let small = Options::default().send_depth(4);
/// let client = Connector::new().options(small).connect_to(address)?;
/// let mut batch = client.batch();
/// for number in 0..5u8 {
///     batch.send(vec![number])?;
/// }
/// let unposted = batch.post().unwrap_err();
/// assert!(unposted.error.is_limit(), "{unposted}");
/// // The software device posts all or nothing. Wait for other work, then post the rest again.
/// assert_eq!((unposted.posted.len(), unposted.rest.len()), (0, 5));
/// # server.join().unwrap()?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Unposted {
    /// Why the first of them was refused.
    pub error: Error,
    /// The transfers of the requests before it. The software device posts all of a batch or none.
    pub posted: Box<[Transfer]>,
    /// The buffers of the other requests, in order.
    pub rest: Box<[Gather]>,
}

impl fmt::Display for Unposted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unposted {
    /// The cause of [`Unposted::error`], whose text this type prints.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Unposted> for Error {
    fn from(unposted: Unposted) -> Self {
        unposted.error
    }
}

impl Connection {
    /// Starts a batch: requests that are posted with one doorbell, which is faster than one by one.
    ///
    /// ```
    /// # use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    /// let log = server.share(16, Access::REMOTE_WRITE)?;
    /// let (first, second) = (log.remote().slice(0, 8).unwrap(), log.remote().slice(8, 8).unwrap());
    /// let mut batch = client.batch();
    /// batch.write(b"record 1".to_vec(), first)?;
    /// batch.write(b"record 2".to_vec(), second)?;
    /// batch.immediate(2).send(b"two records".to_vec())?;
    /// for transfer in batch.post()? {
    ///     transfer.wait()?;
    /// }
    /// assert_eq!(&server.receive()?[..], b"two records");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            next: self.request(),
            connection: self,
            items: Vec::new(),
        }
    }
}

impl Batch<'_> {
    /// Gives the request that is added next a fence; see [`Request::fence`].
    pub fn fence(&mut self) -> &mut Self {
        self.next = self.next.fence();
        self
    }

    /// Gives the request that is added next immediate data; see [`Request::immediate`].
    pub fn immediate(&mut self, imm: u32) -> &mut Self {
        self.next = self.next.immediate(imm);
        self
    }

    /// Adds a send; see [`Connection::send`].
    ///
    /// # Errors
    /// As for [`Connection::send`], except errors that only posting reveals.
    pub fn send(&mut self, buffer: impl Into<Gather>) -> Result<(), Failed> {
        let item = self.take_next().send_item(buffer.into());
        self.items.push(item);
        Ok(())
    }

    /// Adds a write; see [`Connection::write`].
    ///
    /// # Errors
    /// As for [`Connection::write`], except errors that only posting reveals.
    pub fn write(&mut self, buffer: impl Into<Gather>, to: RemoteMemory) -> Result<(), Failed> {
        let item = self.take_next().write_item(buffer.into(), to)?;
        self.items.push(item);
        Ok(())
    }

    /// Adds a read; see [`Connection::read`].
    ///
    /// # Errors
    /// As for [`Connection::read`], except errors that only posting reveals.
    pub fn read(&mut self, buffer: impl Into<Gather>, from: RemoteMemory) -> Result<(), Failed> {
        let item = self.take_next().read_item(buffer.into(), from)?;
        self.items.push(item);
        Ok(())
    }

    /// Posts all requests; the transfers are in the same order.
    ///
    /// # Errors
    /// The send queue has no room for all of them, or the connection has ended; the error returns what was not posted.
    pub fn post(self) -> Result<Vec<Transfer>, Unposted> {
        let inner = &self.connection.inner;
        let outcome = inner.work.post_batch(self.items);
        let transfers = outcome.posted.into_iter();
        let posted: Vec<Transfer> = transfers
            .map(|key| Transfer::new(inner.clone(), key))
            .collect();
        match outcome.refused {
            None => Ok(posted),
            Some((error, rest)) => Err(Unposted {
                error: self.connection.refusal(error),
                posted: posted.into(),
                rest: rest.into(),
            }),
        }
    }

    /// Posts all requests as one operation. Only the last request is signaled (selective signaling), so the operation
    /// has one completion.
    ///
    /// All buffers return together and in order, in `buffer` and `more` of [`Done`](crate::Done) or [`Failed`].
    ///
    /// ```
    /// # use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    /// let log = server.share(16, Access::REMOTE_WRITE)?;
    /// let mut batch = client.batch();
    /// batch.write(b"record 1".to_vec(), log.remote())?;
    /// batch.send(b"one record".to_vec())?;
    /// let done = batch.post_as_one()?.wait()?;
    /// assert_eq!((&done.buffer[..], &done.more[0][..]), (&b"record 1"[..], &b"one record"[..]));
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Batch::post`]; also if nothing was added.
    pub fn post_as_one(self) -> Result<Transfer, Failed> {
        let connection = self.connection;
        let key = connection.inner.work.post_as_one(self.items);
        key.map(|key| Transfer::new(connection.inner.clone(), key))
            .map_err(|failed| connection.explain(failed))
    }

    fn take_next(&mut self) -> Request<'_> {
        std::mem::replace(&mut self.next, self.connection.request())
    }
}
