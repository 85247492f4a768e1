//! Streams for tasks of tokio.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ::tokio::task::JoinSet;
use ::tokio::task::coop::poll_proceed;
use portolan_addrinfo::names::pool::DEADLINE_MAX;
use portolan_provider::{Error, Result, Step};
use portolan_rsocket::Close;

use super::core::Direction;
use super::error::io_error;
use super::listener::StreamListener;
use super::options::StreamOptions;
use super::socket::Connecting;
use super::stream::Stream;
use super::watched::Watched;
use crate::connection::{ATTEMPT_DELAY, Failures};
use crate::deadline;
use crate::resolve::resolve_async;
use crate::tasks::runtime::{
    self, Waited, of_ended_task, off_runtime, runtime_error, watch, within,
};

/// A [`Stream`] for tasks: tokio's `AsyncRead` and `AsyncWrite`.
///
/// Reads and writes may be dropped at any await point: a dropped write has written nothing, or has reported how much
/// it wrote. Shutting down ends this side's direction; the peer's data can still be read.
///
/// While a task waits for a peer on the same host, a task of the library polls for up to 0.3 ms, because that is faster than to
/// sleep and be woken. It lets all other tasks run after each look. It polls rarely if the answers take longer. So a thread of the runtime
/// is busy while messages arrive at shorter intervals.
///
/// ```
/// use portolan::stream::{AsyncStream, AsyncStreamListener};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let listener = AsyncStreamListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?.to_string();
/// # let server = tokio::spawn(async move {
/// #     let (mut stream, _) = listener.accept().await?;
/// #     stream.write_all(b"ahoy").await?;
/// #     stream.shutdown().await?;
/// #     Ok::<_, std::io::Error>(stream)
/// # });
/// let mut stream = AsyncStream::connect(&address).await?;
/// let mut text = String::new();
/// stream.read_to_string(&mut text).await?;
/// assert_eq!(text, "ahoy");
/// # drop(server.await.unwrap()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncStream {
    reads: ReadHalf,
    writes: WriteHalf,
}

/// The reading half of an [`AsyncStream`]; [`AsyncStream::into_split`] has an example.
#[derive(Debug)]
pub struct ReadHalf(Arc<Watched>);

/// The writing half of an [`AsyncStream`]. Dropping it ends this side's direction. [`AsyncStream::into_split`] has an
/// example.
#[derive(Debug)]
pub struct WriteHalf(Arc<Watched>);

/// A [`StreamListener`] for tasks.
///
/// ```
/// use portolan::stream::{AsyncStream, AsyncStreamListener};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = AsyncStreamListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr()?.to_string();
/// let client = tokio::spawn(async move {
///     let mut stream = AsyncStream::connect(&address).await?;
///     stream.write_all(b"ahoy").await?;
///     stream.flush().await?;
///     Ok::<_, std::io::Error>(stream)
/// });
/// let (mut stream, _) = listener.accept().await?;
/// let mut text = [0; 4];
/// stream.read_exact(&mut text).await?;
/// assert_eq!(&text, b"ahoy");
/// # drop(client.await.unwrap()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncStreamListener {
    listener: AsyncFd<runtime::Watched<StreamListener>>,
}

impl AsyncStream {
    /// Registers a stream with the current runtime.
    ///
    /// # Errors
    /// The runtime cannot watch the stream's descriptor.
    pub fn new(stream: Stream) -> io::Result<Self> {
        let watched = Arc::new(Watched::new(stream)?);
        Ok(Self {
            reads: ReadHalf(watched.clone()),
            writes: WriteHalf(watched),
        })
    }

    /// Connects to `host:port` with default options; see [`AsyncStream::connect_with`].
    ///
    /// # Errors
    /// As for [`Stream::connect_with`].
    pub async fn connect(destination: &str) -> Result<Self> {
        Self::connect_with(destination, &StreamOptions::default()).await
    }

    /// Connects to `host:port`. Addresses of a name are tried concurrently, as by [`Stream::connect_with`].
    ///
    /// # Errors
    /// As for [`Stream::connect_with`].
    pub async fn connect_with(destination: &str, options: &StreamOptions) -> Result<Self> {
        let deadline = deadline::after(options.timeout);
        let resolved = resolve_async(destination, deadline::left(deadline).min(DEADLINE_MAX));
        let resolved = within(deadline, Step::ResolveName, resolved).await?;
        let addresses: Vec<SocketAddr> = resolved.into_iter().map(|each| each.addr).collect();
        let stream = match addresses[..] {
            [only] => connect_to(options.clone(), only, deadline).await?,
            _ => race(options, destination, addresses, deadline).await?,
        };
        Self::new(stream).map_err(runtime_error)
    }

    /// The stream, for calls that do not wait.
    pub fn get_ref(&self) -> &Stream {
        &self.reads.0.stream
    }

    /// The peer's address.
    ///
    /// # Errors
    /// As for [`Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.get_ref().peer_addr()
    }

    /// The local address.
    ///
    /// # Errors
    /// As for [`Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.get_ref().local_addr()
    }

    /// Ends both directions and waits until the peer has confirmed all written data; see [`Stream::close`]. If the future
    /// is dropped, the data is still delivered, and another call waits for it again.
    ///
    /// ```
    /// # use portolan::stream::{AsyncStream, AsyncStreamListener};
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let listener = AsyncStreamListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?.to_string();
    /// # let server = tokio::spawn(async move { listener.accept().await });
    /// let mut stream = AsyncStream::connect(&address).await?;
    /// stream.write_all(b"the last words").await?;
    /// stream.close().await?;
    /// # let (mut peer, _) = server.await.unwrap()?;
    /// # let mut words = String::new();
    /// # peer.read_to_string(&mut words).await?;
    /// # assert_eq!(words, "the last words");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error that broke the stream.
    pub async fn close(&self) -> io::Result<()> {
        let watched = &self.reads.0;
        let core = watched.stream.core();
        core.close(Close::Both);
        watched.flushed().await?;
        core.finish_close()
    }

    /// Splits the stream into halves, for two tasks.
    ///
    /// ```
    /// # use portolan::stream::{AsyncStream, AsyncStreamListener};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let listener = AsyncStreamListener::bind("127.0.0.1:0").await?;
    /// # let address = listener.local_addr()?.to_string();
    /// # let echo = tokio::spawn(async move {
    /// #     let (mut reads, mut writes) = listener.accept().await?.0.into_split();
    /// #     tokio::io::copy(&mut reads, &mut writes).await
    /// # });
    /// let stream = AsyncStream::connect(&address).await?; // to an echo
    /// let (mut reads, mut writes) = stream.into_split();
    /// let writing = tokio::spawn(async move {
    ///     writes.write_all(&[7; 1 << 20]).await
    ///     // Here `writes` is dropped, so the peer reads the end.
    /// });
    /// let mut back = Vec::new();
    /// reads.read_to_end(&mut back).await?;
    /// assert_eq!(back.len(), 1 << 20);
    /// writing.await.unwrap()?;
    /// # echo.await.unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reads, self.writes)
    }

    /// Waits until data, the end, or an error can be read. Several tasks may wait.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.reads.0.ready(Direction::Read).await
    }

    /// Waits until data can be written, or an error is reported. Several tasks may wait.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        self.reads.0.ready(Direction::Write).await
    }
}

impl ReadHalf {
    /// Rejoins the halves of one stream.
    ///
    /// # Errors
    /// The halves belong to two streams; both are returned.
    pub fn reunite(self, writes: WriteHalf) -> std::result::Result<AsyncStream, (Self, WriteHalf)> {
        match Arc::ptr_eq(&self.0, &writes.0) {
            true => Ok(AsyncStream {
                reads: self,
                writes,
            }),
            false => Err((self, writes)),
        }
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // Fails if the stream is over.
        let _ = self.0.stream.shutdown(Shutdown::Write);
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll(context, Direction::Read, |stream, wait| {
            let unfilled = into.initialize_unfilled();
            let length = stream.core().read(unfilled, wait, false)?;
            into.advance(length);
            Ok(())
        })
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll(context, Direction::Write, |stream, wait| {
            stream.core().write(data, wait)
        })
    }

    /// Ready at once: data is sent as soon as it is written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = self.0.stream.shutdown(Shutdown::Write);
        Poll::Ready(match done {
            // This side or the peer has ended it before.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        })
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reads).poll_read(context, into)
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writes).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writes).poll_shutdown(context)
    }
}

impl AsyncStreamListener {
    /// Listens on `addr:port`, `name:port` or `:port`; see [`StreamListener::bind`].
    ///
    /// # Errors
    /// As for [`StreamListener::bind`].
    pub async fn bind(address: &str) -> Result<Self> {
        let address = address.to_owned();
        let listener = off_runtime(Step::Listen, move || StreamListener::bind(&address)).await?;
        Self::new(listener).map_err(runtime_error)
    }

    /// Registers a listener with the current runtime.
    ///
    /// # Errors
    /// The runtime cannot watch the listener's descriptor.
    pub fn new(listener: StreamListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = watch(listener, Step::Watch).map_err(io_error)?;
        Ok(Self { listener })
    }

    /// The listening address, with its port.
    ///
    /// # Errors
    /// As for [`StreamListener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.get_ref().0.local_addr()
    }

    /// Waits for the next stream. Several tasks may wait.
    ///
    /// # Errors
    /// As for [`StreamListener::accept`].
    pub async fn accept(&self) -> io::Result<(AsyncStream, SocketAddr)> {
        let (stream, peer) = runtime::ready(&self.listener, next).await?;
        Ok((AsyncStream::new(stream)?, peer))
    }

    /// Takes the next stream, or registers the task to be woken when there is one. If several tasks call this, only the last one is
    /// woken. Tasks in [`accept`](Self::accept) are woken, too.
    ///
    /// # Errors
    /// As for [`StreamListener::accept`].
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(AsyncStream, SocketAddr)>> {
        let turn = ready!(poll_proceed(context));
        loop {
            if let Some((stream, peer)) = next(&self.listener.get_ref().0)? {
                turn.made_progress();
                return Poll::Ready(AsyncStream::new(stream).map(|stream| (stream, peer)));
            }
            let mut guard = ready!(self.listener.poll_read_ready(context))?;
            // Check again before readiness is cleared, so that no request is missed.
            if let Some((stream, peer)) = next(&self.listener.get_ref().0)? {
                turn.made_progress();
                return Poll::Ready(AsyncStream::new(stream).map(|stream| (stream, peer)));
            }
            guard.clear_ready();
        }
    }
}

/// The next stream of a listener that does not wait, if there is one.
fn next(listener: &StreamListener) -> io::Result<Option<(Stream, SocketAddr)>> {
    match listener.accept() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        accepted => accepted.map(Some),
    }
}

async fn race(
    options: &StreamOptions,
    name: &str,
    addresses: Vec<SocketAddr>,
    deadline: Instant,
) -> Result<Stream> {
    let mut waiting = addresses.into_iter();
    // Dropping the set aborts the remaining attempts.
    let mut running = JoinSet::new();
    let mut failed = Failures::of(name);
    loop {
        if deadline::left(deadline).is_zero() {
            waiting
                .by_ref()
                .for_each(|address| failed.add_untried(address));
        }
        if let Some(address) = waiting.next() {
            running.spawn(connect_to(options.clone(), address, deadline));
        }
        ::tokio::select! {
            Some(ended) = running.join_next() => match ended {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failed.add(error),
                Err(ended) => failed.add(of_ended_task(ended, Step::Connect)),
            },
            () = ::tokio::time::sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
            else => return Err(failed.into_error()),
        }
    }
}

async fn connect_to(
    options: StreamOptions,
    destination: SocketAddr,
    deadline: Instant,
) -> Result<Stream> {
    let explain = move |error: Error| error.between(None, Some(destination.into()));
    // Starting may block while the processes that share the port elect a coordinator.
    let start = off_runtime(Step::ResolveAddress, move || {
        Connecting::start(&options, destination, deadline)
    });
    let connecting = within(deadline, Step::ResolveAddress, start)
        .await
        .map_err(explain)?;
    let mut events = watch(connecting, Step::Watch)?;
    let finish = async {
        loop {
            if let Some(stream) = events.get_mut().0.try_finish()? {
                return Ok(stream);
            }
            let mut guard = events.readable_mut().await.map_err(runtime_error)?;
            // Check again before readiness is cleared, so that no event is missed.
            if let Some(stream) = guard.get_inner_mut().0.try_finish()? {
                return Ok(stream);
            }
            guard.clear_ready();
        }
    };
    let stream: Stream = within(deadline, Step::Connect, finish)
        .await
        .map_err(explain)?;
    // If another address has won, dropping this one must not wait for its peer on a thread of the runtime.
    let _ = stream.set_nonblocking(true);
    Ok(stream)
}

impl Waited for StreamListener {
    fn number(&self) -> Result<RawFd> {
        self.descriptor().map(|fd| fd.as_raw_fd())
    }
}

impl Waited for Connecting {
    fn number(&self) -> Result<RawFd> {
        self.descriptor().map(|fd| fd.as_raw_fd())
    }
}
