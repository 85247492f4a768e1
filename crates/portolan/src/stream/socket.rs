//! A stream before it is connected: an address, then a connect or a listener.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use portolan_provider::cm::{ConnParam, EventType, IdOption};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use super::core::{Core, Signal};
use super::listener::StreamListener;
use super::options::{StreamOptions, conn_param};
use super::stream::Stream;
use crate::cm::{CmId, Event, EventChannel};
use crate::connection::{Attempt, Listener, Steps, require_port};
use crate::deadline;

/// A socket that neither connects nor listens yet. Most programs use [`Stream::connect`] and [`StreamListener::bind`].
///
/// A clone is the same socket. It keeps the descriptor open if [`Socket::connect`] or [`Socket::listen`] fails.
///
/// ```
/// use portolan::StreamOptions;
/// use portolan::provider::software_provider;
/// use portolan::stream::Socket;
///
/// let options = StreamOptions::default();
/// let socket = Socket::new_on(software_provider()?)?;
/// socket.bind("127.0.0.1:0".parse()?)?;
/// let listener = socket.listen(128, options.clone())?;
/// # let address = listener.local_addr()?;
/// # let server = std::thread::spawn(move || listener.accept());
///
/// // A client with a port of its own choice.
/// let socket = Socket::new_on(software_provider()?)?;
/// socket.bind("127.0.0.1:0".parse()?)?;
/// let own = socket.id().addresses()?.local.and_then(|own| own.inet());
/// let stream = socket.connect(address, &options)?.finish()?;
/// assert_eq!(Some(stream.local_addr()?), own);
/// # server.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Socket {
    id: CmId,
    events: EventChannel,
}

/// A connect in progress.
///
/// ```
/// use portolan::provider::software_provider;
/// use portolan::stream::Socket;
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// # let listener = portolan::StreamListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?;
/// # let server = std::thread::spawn(move || listener.accept());
/// let socket = Socket::new_on(software_provider()?)?;
/// let mut connecting = socket.connect(address, &Default::default())?;
/// let stream = loop {
///     if let Some(stream) = connecting.try_finish()? {
///         break stream;
///     }
///     // An event loop waits for this and other descriptors, at most until `connecting.deadline()`.
///     poll(&mut [PollFd::new(&connecting, PollFlags::IN)], None)?;
/// };
/// assert_eq!(stream.peer_addr()?, address);
/// # server.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Connecting {
    options: StreamOptions,
    steps: Steps,
    core: Option<Core>,
}

impl Socket {
    /// Creates a socket on a provider.
    ///
    /// # Errors
    /// The provider failed.
    pub fn new_on(provider: Arc<dyn Provider>) -> Result<Self> {
        let events = EventChannel::open_on(provider)?;
        let id = CmId::new(&events)?;
        Ok(Self { id, events })
    }

    /// Binds it to a local address; port 0 selects a free port.
    ///
    /// # Errors
    /// The address is in use or belongs to no interface.
    pub fn bind(&self, local: SocketAddr) -> Result<()> {
        self.id
            .bind(local)
            .map_err(|error| error.between(Some(local.into()), None))
    }

    /// Sets an option of the connection manager.
    ///
    /// # Errors
    /// The option is unknown to the provider, or set too late.
    pub fn set_option(&self, option: IdOption) -> Result<()> {
        self.id.set_option(option)
    }

    /// The id.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Listens. `backlog` limits the queued requests.
    ///
    /// # Errors
    /// The port is in use.
    pub fn listen(self, backlog: i32, options: StreamOptions) -> Result<StreamListener> {
        self.id.listen(backlog)?;
        let listener = Listener::of_id(self.id, self.events);
        Ok(StreamListener::new(listener, options))
    }

    /// Starts to connect, without waiting.
    ///
    /// # Errors
    /// This socket cannot reach the destination address.
    pub fn connect(self, destination: SocketAddr, options: &StreamOptions) -> Result<Connecting> {
        let deadline = deadline::after(options.timeout);
        self.connect_until(destination, options, deadline)
    }

    fn connect_until(
        self,
        destination: SocketAddr,
        options: &StreamOptions,
        deadline: Instant,
    ) -> Result<Connecting> {
        let (id, events) = (self.id, self.events);
        Ok(Connecting {
            options: options.clone(),
            steps: Steps::start(id, events, options.source, destination, deadline)?,
            core: None,
        })
    }
}

impl AsFd for Socket {
    /// The descriptor whose number identifies the socket. It stays the same when the socket connects or listens.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Connecting {
    /// Starts to connect with the provider of the options, otherwise with that of the route.
    pub(super) fn start(
        options: &StreamOptions,
        destination: SocketAddr,
        deadline: Instant,
    ) -> Result<Self> {
        require_port(destination)?;
        let provider = match &options.provider {
            Some(provider) => provider.clone(),
            None => crate::provider::towards(options.source, destination)?.provider,
        };
        Socket::new_on(provider)?.connect_until(destination, options, deadline)
    }

    /// Advances the connect. Returns the stream once it is connected. Call it when the descriptor is readable.
    ///
    /// # Errors
    /// The destination is unreachable, nothing listens at the address, the peer does not use rsocket, or the deadline
    /// passed.
    pub fn try_finish(&mut self) -> Result<Option<Stream>> {
        let found = self.take_events()?;
        if found.is_none() && deadline::left(self.steps.deadline).is_zero() {
            let (after_ms, retries) = (0, 0);
            let late = Error::new(Step::Event, Cause::TimedOut { after_ms, retries });
            return Err(self.steps.explain(late));
        }
        Ok(found)
    }

    /// Waits until the stream is connected.
    ///
    /// # Errors
    /// As for [`Connecting::try_finish`].
    pub fn finish(self) -> Result<Stream> {
        Attempt::finish(self)
    }

    /// The socket that connects.
    pub fn socket(&self) -> Socket {
        let (id, events) = (self.steps.id.clone(), self.steps.events.clone());
        Socket { id, events }
    }

    /// The time when the connect fails.
    pub fn deadline(&self) -> Instant {
        self.steps.deadline
    }

    /// The id.
    pub fn id(&self) -> &CmId {
        &self.steps.id
    }
}

impl Attempt for Connecting {
    type Prize = Stream;

    fn steps(&self) -> &Steps {
        &self.steps
    }

    fn prepare(&mut self) -> Result<()> {
        if self.core.is_none() {
            let (id, events) = (self.steps.id.clone(), self.steps.events.clone());
            self.core = Some(Core::new(id, events, Signal::new()?, &self.options)?);
        }
        Ok(())
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<Stream>> {
        match (self.steps.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => match &self.options.route {
                Some(paths) => {
                    self.steps.step = Step::ResolveRoute;
                    self.steps.id.set_route(paths)?;
                }
                None => self.steps.resolve_route()?,
            },
            (Step::ResolveRoute, EventType::RouteResolved) => {
                self.steps.step = Step::Connect;
                self.prepare()?;
                let Some(core) = &self.core else {
                    return Ok(None);
                };
                let param = ConnParam {
                    private_data: core.conn_data().into_boxed_slice(),
                    // iWARP reads during the connect.
                    initiator_depth: u8::from(core.is_iwarp()),
                    ..conn_param()
                };
                self.steps.id.connect(&param)?;
            }
            (Step::Connect, EventType::Established) => {
                let Some(mut core) = self.core.take() else {
                    return Ok(None);
                };
                core.connected(event.private_data(), true)?;
                core.release_descriptor()?;
                return Ok(Some(Stream::new(core)));
            }
            _ => return Err(self.steps.unexpected(event)),
        }
        Ok(None)
    }
}

impl Connecting {
    /// As [`AsFd::as_fd`], but fails if no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.steps.events.descriptor()
    }
}

impl AsFd for Connecting {
    /// Readable while there is something for [`Connecting::try_finish`] to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.steps.events.as_fd()
    }
}
