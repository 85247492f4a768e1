//! An established connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::cm::Ece;
use portolan_provider::error::PrivateData;
use portolan_provider::verbs::Counter;
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::background::Registration;
use super::inner::Inner;
use super::transport::Transport;
use crate::cm::CmId;
use crate::deadline;
use crate::work::{Message, Transfer};

/// A connection: reliable (RC), unless both ends have chosen another [`Transport`].
///
/// Dropping it disconnects and flushes posted work. Messages and transfers that the caller still
/// holds keep their buffers.
///
/// Several threads may use it concurrently.
///
/// # Order
///
/// * The peer executes sends and writes in the order of posting, and a read or an atomic after the sends and writes that were
///   posted before it.
/// * **A read or an atomic may be executed after requests that were posted later.** A read before a write of the same memory
///   may return the bytes of that write (InfiniBand Architecture Specification, 10.8.3.3). To prevent it, fence the later
///   request, [`connection.request().fence().write(..)`](super::Request::fence), or wait for the read first.
/// * Requests complete in the order of posting.
/// * Between different connections there is no order.
///
/// # Example
///
/// Between two processes of one host, reads, writes and messages go through memory once the link between the processes is
/// there. The first connection creates it, and its first requests may be packets, which are slower. The same holds for all
/// requests if both ends are in one process. [`SoftwareProvider::way_of`](crate::software::SoftwareProvider::way_of) explains
/// how to see the way and to wait for the link.
///
/// ```
/// use std::time::Duration;
/// # let (server, client) = portolan::doc_pair()?;
///
/// client.send(b"ahoy".to_vec())?.wait()?;
/// let message = server.receive_within(Duration::from_secs(5))?;
/// assert_eq!(&message[..], b"ahoy");
/// server.close(Duration::from_secs(5))?;
/// assert!(client.receive().unwrap_err().is_disconnected());
/// # Ok::<(), portolan::Error>(())
/// ```
pub struct Connection {
    pub(crate) inner: Arc<Inner>,
    peer_private_data: Vec<u8>,
    background: Registration,
}

impl Connection {
    pub(crate) fn new(inner: Arc<Inner>, peer_private_data: Vec<u8>) -> Self {
        let background = Registration::new(&inner);
        Self {
            inner,
            peer_private_data,
            background,
        }
    }

    /// The local address; `None` if the device has no IP address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.addresses.local?.inet()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.addresses.remote?.inet()
    }

    /// The peer's private data: the whole field of its message, zero-padded.
    pub fn peer_private_data(&self) -> &[u8] {
        &self.peer_private_data
    }

    /// The vendor options of the peer's request or reply ([`Options::ece`](super::Options::ece)); zeros if it sent none.
    pub fn peer_ece(&self) -> Ece {
        self.inner.id.remote_ece()
    }

    /// The number of the local queue pair.
    pub fn qp_num(&self) -> Qpn {
        self.inner.queue_pair().qpn()
    }

    /// The transport service.
    pub fn transport(&self) -> Transport {
        self.inner.work.transport
    }

    /// The underlying id. It does not expose its queue pair or completions, because the safety of
    /// posted buffers depends on them. Disconnecting or destroying it ends the connection. The peer's confirmation arrives
    /// at the id, so [`Connection::close`] does not wait for it after the id is destroyed.
    pub fn id(&self) -> &CmId {
        &self.inner.id
    }

    /// Why the connection has ended; `None` while it works. A program that neither sends nor receives learns of the
    /// end here.
    ///
    /// If this side refused a request of the peer, the cause is
    /// [`PeerRequestRefused`](crate::Cause::PeerRequestRefused), with the memory that the request named. The kernel's
    /// devices report the refusal without the memory, if their driver raises an asynchronous event for it. Otherwise the
    /// cause is `WorkFailed(WrFlushErr)` or `Disconnected`.
    ///
    /// | cause | the connection ended because |
    /// |---|---|
    /// | `Disconnected` | the peer closed or dropped it |
    /// | `Closed` | this end closed or dropped it, or its [id](Connection::id) was disconnected or destroyed |
    /// | `PeerDied` | the peer's process ended without closing it |
    /// | `PeerSilent` | the peer did not answer within the time of the [`Keepalive`](crate::Keepalive) |
    /// | `DeviceRemoved` | this end's device is gone |
    /// | `PeerRequestRefused` | this end refused a request of the peer |
    /// | `WorkFailed` | work of this end failed, with the status: the peer refused it (`RemAccessErr`), or has not acknowledged it in any of the retries (`RetryExcErr`) |
    ///
    /// ```
    /// use portolan::Cause;
    ///
    /// # use std::time::Duration;
    /// # let (server, client) = portolan::doc_pair()?;
    /// assert!(server.ended().is_none());
    /// client.disconnect()?;
    /// server.wait_disconnected(Duration::from_secs(10))?;
    /// assert_eq!(client.ended().unwrap().cause, Cause::Closed);
    /// assert_eq!(server.ended().unwrap().cause, Cause::Disconnected);
    /// assert_eq!(server.receive().unwrap_err().cause, Cause::Disconnected);
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn ended(&self) -> Option<Error> {
        // Handle new completions and events first. An error here is also reported by the next wait.
        let _ = self.inner.take_events();
        let _ = self.inner.work.collect();
        self.inner.ended()
    }

    /// Why this side's messages do not arrive at the moment: `PeerNotReady` if the peer has no receive posted, because
    /// its program holds all messages that it has received. `None` if nothing is known to delay them.
    ///
    /// RDMA has no flow control of its own for messages. A device that has no receive for a message answers "receiver
    /// not ready" (RNR NAK), and the sender's device repeats the message until there is one, so that nothing is lost.
    /// With [`Options::rnr_retry_count`](crate::Options::rnr_retry_count) below 7 at the peer it gives up, and the
    /// connection ends with `WorkFailed(RnrRetryExcErr)`. Work that was posted later waits, too.
    ///
    /// The kernel's devices do not report this state: the result is `None` there. On unreliable connections such
    /// messages are lost.
    pub fn send_delay(&self) -> Option<Error> {
        self.inner.send_delay()
    }

    /// The counters of the connection's queue pair: packets, retransmissions, and drops by reason.
    ///
    /// # Errors
    /// The provider failed.
    pub fn counters(&self) -> Result<Vec<Counter>> {
        let counted = self.inner.queue_pair().counters();
        counted.map_err(|error| self.inner.explain(error))
    }

    /// Takes over the oldest work whose waiter was cancelled ([`Transfer::abandon`], or a dropped `tasks::Posted`).
    /// Returns `None` if there is none. The work may still be posted: wait for it, or use [`Transfer::try_finish`].
    ///
    /// The connection keeps as much abandoned work as may be posted at once
    /// ([`Options`](crate::Options)`::send_depth` and `posted_receives`). Beyond that it frees the oldest completed
    /// work.
    pub fn take_abandoned(&self) -> Option<Transfer> {
        self.take_abandoned_if(|_| true)
    }

    /// Takes over the oldest abandoned work with a tag ([`Transfer::tagged`], or `tagged` of a `tasks::Posted`);
    /// otherwise like [`Connection::take_abandoned`].
    pub fn take_abandoned_tagged(&self, tag: u64) -> Option<Transfer> {
        self.take_abandoned_if(|known| known == Some(tag))
    }

    fn take_abandoned_if(&self, wanted: impl Fn(Option<u64>) -> bool) -> Option<Transfer> {
        let work = self.inner.work.take_abandoned(|work| wanted(work.tag))?;
        let transfer = Transfer::new(self.inner.clone(), work.key);
        Some(match work.tag {
            Some(tag) => transfer.tagged(tag),
            None => transfer,
        })
    }

    /// Waits for the next message in the connection's own receives, without a limit. If a peer on another host dies
    /// without a disconnect, only a [`Keepalive`](crate::Keepalive) ends the wait.
    ///
    /// # Errors
    /// The connection ended and all messages are taken: [`Error::is_disconnected`] if a side ended it or the peer died.
    pub fn receive(&self) -> Result<Message> {
        self.receive_until(None)
    }

    /// Waits for the next message, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`, or as for [`Connection::receive`].
    pub fn receive_within(&self, timeout: Duration) -> Result<Message> {
        self.receive_until(Some(deadline::after(timeout)))
    }

    /// Returns the next message if one has arrived.
    ///
    /// ```
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// assert!(server.try_receive()?.is_none());
    /// client.send(b"ahoy".to_vec())?.wait()?;
    /// let message = loop {
    ///     match server.try_receive()? {
    ///         Some(message) => break message,
    ///         None => std::thread::yield_now(),
    ///     }
    /// };
    /// assert_eq!(&message[..], b"ahoy");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// The connection ended and all messages are taken.
    pub fn try_receive(&self) -> Result<Option<Message>> {
        self.inner.work.collect()?;
        self.inner.take_events()?;
        self.inner.watch_peer();
        self.next_arrival().transpose()
    }

    /// Disconnects and waits for the peer's confirmation, at most for `timeout`. Posted work is
    /// flushed.
    ///
    /// A peer of this library confirms at once, whatever its program does. A C program confirms when it takes the
    /// event.
    ///
    /// ```
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// # use std::time::Duration;
    /// client.send(b"the last one".to_vec())?.wait()?;
    /// client.close(Duration::from_secs(5))?;
    /// assert_eq!(&server.receive()?[..], b"the last one");
    /// assert!(server.receive().unwrap_err().is_disconnected());
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// `TimedOut` if the peer does not answer; the connection is closed in any case.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.disconnect()?;
        let deadline = Some(deadline::after(timeout));
        self.inner
            .wait_until(deadline, || self.inner.is_disconnected().then_some(()))
            .map_err(of_disconnect)
    }

    /// Disconnects without waiting. Posted work is flushed. [`Connection::close`] waits for the peer's confirmation.
    ///
    /// # Errors
    /// The provider failed. It is not an error if the connection has already ended.
    pub fn disconnect(&self) -> Result<()> {
        self.inner.disconnect()
    }

    /// Waits until the connection has ended at both sides, at most for `timeout`: the peer has disconnected, or has
    /// confirmed this side's [`Connection::disconnect`].
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<()> {
        let deadline = Some(deadline::after(timeout));
        self.inner
            .wait_until(deadline, || self.inner.is_disconnected().then_some(()))
            .map_err(of_disconnect)
    }

    pub(crate) fn next_arrival(&self) -> Option<Result<Message>> {
        self.arrival().map(Ok).or_else(|| {
            let ended = self.inner.ended()?;
            // Collect again: a completion may have arrived between the last look and the end of the
            // connection, and messages that arrived before the end are delivered.
            let collected = self.inner.work.collect();
            let arrived = collected.map(|_| self.arrival());
            let found = arrived.and_then(|arrived| arrived.ok_or(ended));
            Some(found.map_err(of_receive))
        })
    }

    fn arrival(&self) -> Option<Message> {
        let (buffer, completion) = self.inner.work.arrival()?;
        self.inner.replace_held();
        Some(Message::new(self.inner.clone(), buffer, &completion))
    }

    fn receive_until(&self, deadline: Option<Instant>) -> Result<Message> {
        let arrived = self.inner.wait_until(deadline, || self.next_arrival());
        arrived.map_err(of_receive)?
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer_private_data = PrivateData::from(&self.peer_private_data[..]);
        f.debug_struct("Connection")
            .field("inner", &self.inner)
            .field("peer_private_data", &peer_private_data)
            .finish_non_exhaustive()
    }
}

/// The error of a call that waits for the end.
fn of_disconnect(mut error: Error) -> Error {
    error.step = Step::Disconnect;
    error
}

/// The error of a call that receives.
fn of_receive(mut error: Error) -> Error {
    if error.step == Step::Transfer {
        error.step = Step::Receive;
    }
    error
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Drop cannot return an error, and the id is destroyed in any case.
        let _ = self.inner.disconnect();
        self.background.remove(&self.inner);
    }
}
