//! The passive side of streams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_provider::cm::ConnParam;
use portolan_provider::traits::Notify;
use portolan_provider::{Cause, Error, Result};
use portolan_threads::lock::Mutex;

use super::core::{Core, Signal};
use super::options::{StreamOptions, conn_param};
use super::stream::Stream;
use crate::cm::{CmId, EventChannel};
use crate::connection::{Incoming, Listener, has_withdrawn};
use crate::deadline;

/// What a peer of another protocol is told. Without it, its error says only that the application rejected it.
const REFUSAL: &[u8] = b"only rsockets may connect to this port (portolan::Stream, rsocket(7))";
/// What a client is told whose request is not accepted now.
const BUSY: &[u8] = b"this listener does not accept now";
/// What the private data of a request should be.
const PEER_OF_LISTENER: &str = "that of an rsocket (portolan::Stream, rsocket(7))";

/// Listens for streams, like a `TcpListener`.
///
/// Requests of peers that do not use rsocket are rejected, with private data that says why.
///
/// ```
/// use std::io::{Read, Write};
/// use portolan::{Stream, StreamListener};
///
/// let listener = StreamListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?.to_string();
/// let client = std::thread::spawn(move || Stream::connect(&address)?.write_all(b"ahoy"));
/// let (mut stream, peer) = listener.accept()?;
/// let mut text = [0; 4];
/// stream.read_exact(&mut text)?;
/// println!("{peer} says {text:?}");
/// # client.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamListener {
    listener: Listener,
    options: Mutex<StreamOptions>,
    nonblocking: AtomicBool,
}

impl StreamListener {
    /// Listens on `addr:port`, `name:port` or `:port` (all addresses).
    ///
    /// Port 0 selects a free port, and so does an address without a port (`127.0.0.1`, `localhost`): [`local_addr`] has
    /// the port.
    ///
    /// [`local_addr`]: Self::local_addr
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind(address: &str) -> Result<Self> {
        Ok(Self::new(
            Listener::bind(address)?,
            StreamOptions::default(),
        ))
    }

    /// Sets the options of the listener's streams.
    pub fn new(listener: Listener, options: StreamOptions) -> Self {
        let nonblocking = AtomicBool::new(false);
        Self {
            listener,
            options: Mutex::new(options),
            nonblocking,
        }
    }

    /// Waits for the next stream, unless the listener is non-blocking.
    ///
    /// # Errors
    /// `WouldBlock`; the listener's device is gone; there is no room for another stream.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            let incoming = match self.nonblocking.load(Ordering::Relaxed) {
                true => self.listener.try_accept().map_err(super::io_error)?,
                false => Some(self.listener.accept().map_err(super::io_error)?),
            };
            let incoming = incoming.ok_or(io::ErrorKind::WouldBlock)?;
            if let Some(accepted) = self.take(incoming)? {
                return Ok(accepted);
            }
        }
    }

    /// Waits for the next stream, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`, or as for [`StreamListener::accept`].
    pub fn accept_within(&self, timeout: Duration) -> io::Result<(Stream, SocketAddr)> {
        let deadline = deadline::after(timeout);
        loop {
            let incoming = self.listener.accept_within(deadline::left(deadline));
            if let Some(accepted) = self.take(incoming.map_err(super::io_error)?)? {
                return Ok(accepted);
            }
        }
    }

    /// Rejects the oldest request that waits for [`StreamListener::accept`], so that its client need not wait. Returns false if
    /// there is none.
    ///
    /// ```
    /// use portolan::{Stream, StreamListener};
    ///
    /// let listener = StreamListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?.to_string();
    /// let client = std::thread::spawn(move || Stream::connect(&address));
    /// while !listener.reject_one()? {
    ///     std::thread::yield_now();
    /// }
    /// let error = client.join().unwrap().unwrap_err();
    /// assert!(error.to_string().contains("rejected"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`StreamListener::accept`].
    pub fn reject_one(&self) -> io::Result<bool> {
        let incoming = self.listener.try_accept().map_err(super::io_error)?;
        let Some(incoming) = incoming else {
            return Ok(false);
        };
        // Fails if the peer has withdrawn.
        let _ = incoming.reject(BUSY);
        Ok(true)
    }

    /// An endless iterator of the streams that arrive.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> + '_ {
        std::iter::from_fn(|| Some(self.accept().map(|(stream, _)| stream)))
    }

    /// The listening address, with its port.
    ///
    /// # Errors
    /// As for [`Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr().map_err(super::io_error)
    }

    /// Makes [`StreamListener::accept`] return at once if no stream is queued.
    ///
    /// # Errors
    /// None yet; as for `TcpListener`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// The options of streams that are accepted after this.
    pub fn options(&self) -> StreamOptions {
        self.options.lock().clone()
    }

    /// Sets the options of streams that are accepted after this.
    pub fn set_options(&self, options: StreamOptions) {
        *self.options.lock() = options;
    }

    /// The stream of a request. `None` if the peer does not use rsocket or has withdrawn.
    fn take(&self, incoming: Incoming) -> io::Result<Option<(Stream, SocketAddr)>> {
        self.options().check().map_err(super::io_error)?;
        let (id, request) = incoming.into_parts();
        let addresses = id.addresses().unwrap_or_default();
        let accepted = accept(&id, &request, &self.options());
        match accepted.map_err(|error| error.between(addresses.local, addresses.remote)) {
            Ok(stream) => {
                let peer = stream.peer_addr()?;
                Ok(Some((stream, peer)))
            }
            Err(error) if is_peers(&error) || has_withdrawn(&id, &error) => {
                tracing::debug!(%error, "stream not accepted");
                Ok(None)
            }
            Err(error) => Err(super::io_error(error)),
        }
    }

    /// As [`AsFd::as_fd`], but fails if no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.listener.descriptor()
    }
}

impl AsFd for StreamListener {
    /// A descriptor that is readable while a request is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whether the peer caused the error: another kind of request, or a withdrawn one.
fn is_peers(error: &Error) -> bool {
    matches!(
        error.cause,
        Cause::InvalidArgument { .. }
            | Cause::InvalidState { .. }
            | Cause::Disconnected
            | Cause::Rejected { .. }
    )
}

/// Accepts a request without waiting for the peer's confirmation. Data is sent once the confirmation or the peer's
/// first message has arrived.
fn accept(id: &CmId, request: &ConnParam, options: &StreamOptions) -> Result<Stream> {
    // Reject other kinds of peers before creating anything for them.
    if let Err(error) = super::check_peer(&request.private_data, PEER_OF_LISTENER) {
        // Fails if the peer has withdrawn.
        let _ = id.reject(REFUSAL);
        return Err(error);
    }
    let signal = Signal::new()?;
    let called: Arc<dyn Notify> = signal.clone();
    let events = match EventChannel::open_calling(id.provider(), &called)? {
        Some(events) => events,
        None => EventChannel::open_on(id.provider())?,
    };
    id.migrate(&events, options.timeout)?;
    let core = Core::new(id.clone(), events, signal, options)?;
    core.connected(&request.private_data, false)?;
    id.accept(&ConnParam {
        private_data: core.conn_data().into_boxed_slice(),
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        ..conn_param()
    })?;
    Ok(Stream::new(core))
}
