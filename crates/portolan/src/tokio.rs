//! The high-level API for tokio tasks: the same operations as futures.
//!
//! Every future here may be dropped at any await point. Posted work then continues and keeps its
//! buffer until it ends; an incomplete connection is abandoned and the peer is informed.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::tokio::io::unix::AsyncFd;
use ::tokio::task::{JoinError, JoinSet};
use ::tokio::time::{sleep_until, timeout_at};
use portolan_addrinfo::names::pool::DEADLINE_MAX;
use portolan_provider::traits::CompChannel;
use portolan_provider::{Cause, Error, Result, Step};

use crate::cm::{Event, EventChannel};
use crate::connection::{
    ATTEMPT_DELAY, Attempt, Connection, Connector, Failures, Incoming, Inner, Listener, Options,
    accept_outcome, unconfirmed,
};
use crate::deadline;
use crate::resolve::resolve_async;
use crate::sys::{Buffer, RemoteMemory};
use crate::work::{Done, Failed, Message, Transfer};

/// A [`Connection`] for tokio tasks.
#[derive(Debug)]
pub struct AsyncConnection {
    connection: Connection,
    completions: AsyncFd<CompletionFd>,
    events: AsyncFd<EventFd>,
}

/// A [`Listener`] for tokio tasks.
#[derive(Debug)]
pub struct AsyncListener {
    listener: AsyncFd<ListenerFd>,
}

impl AsyncConnection {
    /// Registers a connection with the current runtime.
    ///
    /// # Errors
    /// The runtime cannot watch the connection's descriptors.
    pub fn new(connection: Connection) -> Result<Self> {
        let completions = watch(CompletionFd(connection.inner.work.channel.clone()))?;
        let events = watch(EventFd(connection.inner.events.clone()))?;
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

    /// Sends the whole buffer and waits until the peer has acknowledged it.
    ///
    /// # Errors
    /// The send failed; the error returns the buffer.
    pub async fn send(&self, buffer: Buffer) -> std::result::Result<Done, Failed> {
        self.finish(self.connection.send(buffer)?).await
    }

    /// Writes the whole buffer to the peer's memory and waits until the peer has acknowledged it.
    ///
    /// # Errors
    /// The write failed; the error returns the buffer.
    pub async fn write(
        &self,
        buffer: Buffer,
        to: RemoteMemory,
    ) -> std::result::Result<Done, Failed> {
        self.finish(self.connection.write(buffer, to)?).await
    }

    /// Reads the peer's memory into the buffer.
    ///
    /// # Errors
    /// The read failed; the error returns the buffer.
    pub async fn read(
        &self,
        buffer: Buffer,
        from: RemoteMemory,
    ) -> std::result::Result<Done, Failed> {
        self.finish(self.connection.read(buffer, from)?).await
    }

    /// Adds to eight bytes of the peer's memory; see [`Connection::fetch_add`].
    ///
    /// # Errors
    /// The atomic failed; the error returns the buffer.
    pub async fn fetch_add(
        &self,
        buffer: Buffer,
        at: RemoteMemory,
        add: u64,
    ) -> std::result::Result<Done, Failed> {
        self.finish(self.connection.fetch_add(buffer, at, add)?)
            .await
    }

    /// Compares and swaps eight bytes of the peer's memory; see [`Connection::compare_swap`].
    ///
    /// # Errors
    /// The atomic failed; the error returns the buffer.
    pub async fn compare_swap(
        &self,
        buffer: Buffer,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> std::result::Result<Done, Failed> {
        let transfer = self.connection.compare_swap(buffer, at, compare, swap)?;
        self.finish(transfer).await
    }

    /// Waits until posted work completes.
    ///
    /// # Errors
    /// The work failed; the error returns the buffer.
    pub async fn finish(&self, mut transfer: Transfer) -> std::result::Result<Done, Failed> {
        match self.until(|| transfer.try_take()).await {
            Ok(outcome) => outcome,
            Err(error) => Err(Failed {
                error,
                buffer: None,
            }),
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection ended and all messages are taken.
    pub async fn receive(&self) -> Result<Message> {
        self.until(|| self.connection.next_arrival()).await?
    }

    /// Waits until either side has ended the connection.
    ///
    /// # Errors
    /// The connection's channels failed.
    pub async fn disconnected(&self) -> Result<()> {
        self.until(|| self.connection.inner.is_disconnected().then_some(()))
            .await
    }

    /// Waits until `ready` returns a value. Completions that another task collects wake this task
    /// too.
    async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
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
            ::tokio::select! {
                () = inner.work.turned_since(turn) => {}
                () = reached([watch, inner.reason_due()].into_iter().flatten().min()) => {}
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

impl AsyncListener {
    /// Listens on `addr:port`, `name:port` or `:port`; see [`Listener::bind`].
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub async fn bind(address: &str) -> Result<Self> {
        let address = address.to_owned();
        Self::new(off_runtime(move || Listener::bind(&address)).await?)
    }

    /// Registers a listener with the current runtime.
    ///
    /// # Errors
    /// The runtime cannot watch the listener's descriptor.
    pub fn new(listener: Listener) -> Result<Self> {
        let listener = watch(ListenerFd(listener))?;
        Ok(Self { listener })
    }

    /// The underlying listener, for operations that do not wait.
    pub fn get_ref(&self) -> &Listener {
        &self.listener.get_ref().0
    }

    /// The listening address, with its port.
    ///
    /// # Errors
    /// As for [`Listener::local_addr`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.get_ref().local_addr()
    }

    /// Waits for the next connection request.
    ///
    /// # Errors
    /// As for [`Listener::accept`].
    pub async fn accept(&self) -> Result<Incoming> {
        loop {
            if let Some(incoming) = self.get_ref().try_accept()? {
                return Ok(incoming);
            }
            let mut guard = self.listener.readable().await.map_err(runtime_error)?;
            // Check again while the guard is held and before readiness is cleared: no request is missed.
            if let Some(incoming) = self.get_ref().try_accept()? {
                return Ok(incoming);
            }
            guard.clear_ready();
        }
    }
}

impl Incoming {
    /// Accepts the request and waits until the peer confirms; see [`Incoming::accept_with`].
    ///
    /// # Errors
    /// As for [`Incoming::accept_with`].
    pub async fn accept_async(self, options: &Options) -> Result<AsyncConnection> {
        let deadline = deadline::after(options.timeout);
        let (inner, request) = self.start_accept(options)?;
        let events = watch(EventFd(inner.events.clone()))?;
        loop {
            let event = within(deadline, Step::Accept, next_event(&events))
                .await
                .map_err(|error| unconfirmed(&inner, options, error))?;
            if let Some(outcome) = accept_outcome(&inner, &event) {
                outcome?;
                // The connection registers the same descriptor, which tokio accepts only once.
                drop(events);
                let private_data = request.private_data.into_vec();
                return AsyncConnection::new(Connection::new(inner, private_data));
            }
        }
    }
}

impl Connector {
    /// Connects to `host:port`; see [`Connector::connect`].
    ///
    /// # Errors
    /// As for [`Connector::connect`].
    pub async fn connect_async(&self, destination: &str) -> Result<AsyncConnection> {
        let deadline = deadline::after(self.timeout_of_connect());
        let resolved = resolve_async(destination, deadline::left(deadline).min(DEADLINE_MAX));
        let resolved = within(deadline, Step::ResolveName, resolved).await?;
        let addresses: Vec<SocketAddr> = resolved.into_iter().map(|each| each.addr).collect();
        match addresses[..] {
            [only] => self.connect_async_to(only, deadline).await,
            _ => self.race(destination, addresses, deadline).await,
        }
    }

    /// Tries addresses concurrently; see [`Connector::connect`].
    async fn race(
        &self,
        name: &str,
        addresses: Vec<SocketAddr>,
        deadline: Instant,
    ) -> Result<AsyncConnection> {
        let mut waiting = addresses.into_iter();
        // Dropping the set aborts the remaining attempts.
        let mut running = JoinSet::new();
        let mut failed = Failures::of(name);
        loop {
            if deadline::left(deadline).is_zero() {
                // The running attempts end by themselves.
                waiting
                    .by_ref()
                    .for_each(|address| failed.add_untried(address));
            }
            if let Some(address) = waiting.next() {
                let connector = self.clone();
                running.spawn(async move { connector.connect_async_to(address, deadline).await });
            }
            ::tokio::select! {
                Some(ended) = running.join_next() => match ended {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => failed.add(error),
                    Err(ended) => failed.add(of_ended_task(ended, Step::Connect)),
                },
                () = ::tokio::time::sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
                else => return Err(failed.into_error()),
            }
        }
    }

    async fn connect_async_to(
        &self,
        destination: SocketAddr,
        deadline: Instant,
    ) -> Result<AsyncConnection> {
        // Starting requests a port from the group of processes, which may first have to elect its
        // coordinator.
        let connector = self.clone();
        let start = off_runtime(move || Attempt::start(&connector, destination, deadline));
        let mut attempt = within(deadline, Step::ResolveAddress, start)
            .await
            .map_err(|error| error.between(None, Some(destination.into())))?;
        let events = watch(EventFd(attempt.events().clone()))?;
        loop {
            let event = within(deadline, Step::Event, next_event(&events))
                .await
                .map_err(|error| attempt.explain(error))?;
            if let Some(connection) = attempt.advance(&event)? {
                drop(events);
                return AsyncConnection::new(connection);
            }
        }
    }
}

/// Waits until the given time; forever for `None`.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

async fn next_event(events: &AsyncFd<EventFd>) -> Result<Event> {
    loop {
        if let Some(event) = events.get_ref().0.try_next_event()? {
            return Ok(event);
        }
        let mut guard = events.readable().await.map_err(runtime_error)?;
        // Check again while the guard is held and before readiness is cleared: no event is missed.
        if let Some(event) = events.get_ref().0.try_next_event()? {
            return Ok(event);
        }
        guard.clear_ready();
    }
}

async fn within<T>(
    deadline: Instant,
    step: Step,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let started = Instant::now();
    match timeout_at(deadline.into(), work).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let after_ms = Duration::as_millis(&started.elapsed()) as u64;
            Err(Error::new(
                step,
                Cause::TimedOut {
                    after_ms,
                    retries: 0,
                },
            ))
        }
    }
}

/// Runs blocking work, such as the system's resolver, outside of the runtime's own threads.
async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let runtime = ::tokio::runtime::Handle::current();
    // tokio panics if it has no thread yet, and the system gives none.
    let spawned = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(work)));
    let Ok(task) = spawned else {
        let (call, errno) = ("pthread_create", portolan_provider::error::errno::EAGAIN);
        return Err(Error::new(Step::ResolveName, Cause::Os { call, errno }));
    };
    match task.await {
        Ok(outcome) => outcome,
        Err(ended) => Err(of_ended_task(ended, Step::ResolveName)),
    }
}

/// Converts the failure of one of this module's tasks; resumes its panic in the caller.
fn of_ended_task(ended: JoinError, step: Step) -> Error {
    if ended.is_panic() {
        std::panic::resume_unwind(ended.into_panic());
    }
    let gone = Cause::NoSuchObject("the runtime, which is shutting down,");
    Error::new(step, gone)
}

/// Registers a descriptor with the runtime. Each wrapper owns its descriptor and keeps it open and
/// unchanged, as tokio's newer, unsafe registration requires.
#[allow(deprecated, reason = "the form that every tokio 1 has; see above")]
fn watch<T: AsRawFd>(descriptor: T) -> Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, ::tokio::io::Interest::READABLE).map_err(runtime_error)
}

fn runtime_error(error: std::io::Error) -> Error {
    let errno = error
        .raw_os_error()
        .unwrap_or(portolan_provider::error::errno::EIO);
    Error::new(
        Step::Event,
        Cause::Os {
            call: "epoll",
            errno,
        },
    )
}

#[derive(Debug)]
struct CompletionFd(Arc<dyn CompChannel>);

impl AsRawFd for CompletionFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[derive(Debug)]
struct ListenerFd(Listener);

impl AsRawFd for ListenerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[derive(Debug)]
struct EventFd(EventChannel);

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
