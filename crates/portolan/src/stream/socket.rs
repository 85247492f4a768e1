//! A stream before it is connected: an address, then a connect or a listener.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::cm::{ConnParam, EventType, IdOption};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use super::core::Core;
use super::listener::StreamListener;
use super::options::{StreamOptions, conn_param};
use super::stream::Stream;
use crate::cm::{CmId, Event, EventChannel};
use crate::connection::{Listener, Runner};
use crate::{address_turn, deadline};

/// A socket that is neither connected nor listens. Most programs use [`Stream::connect`] and [`StreamListener::bind`].
///
/// A clone is the same socket. It keeps the descriptor open if [`Socket::connect`] or [`Socket::listen`] fails.
#[derive(Clone, Debug)]
pub struct Socket {
    id: CmId,
    events: EventChannel,
}

/// A connect in progress.
#[derive(Debug)]
pub struct Connecting {
    socket: Socket,
    options: StreamOptions,
    destination: SocketAddr,
    started: Instant,
    deadline: Instant,
    step: Step,
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
        let connecting = Connecting {
            socket: self,
            options: options.clone(),
            destination,
            started: Instant::now(),
            deadline,
            step: Step::ResolveAddress,
            core: None,
        };
        let started = connecting.resolve_address();
        started.map_err(|error| connecting.explain(error))?;
        Ok(connecting)
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
        let provider = match &options.provider {
            Some(provider) => provider.clone(),
            None => crate::provider::towards(options.source, destination)?.provider,
        };
        Socket::new_on(provider)?.connect_until(destination, options, deadline)
    }

    /// Advances the connect. Returns the stream once it is connected. Call it when the descriptor is readable.
    ///
    /// # Errors
    /// The destination is unreachable, no listener is there, the peer does not use rsocket, or the deadline passed.
    pub fn try_finish(&mut self) -> Result<Option<Stream>> {
        let found = self.take_events()?;
        if found.is_none() && deadline::left(self.deadline).is_zero() {
            let (after_ms, retries) = (0, 0);
            return Err(self.explain(Error::new(
                Step::Event,
                Cause::TimedOut { after_ms, retries },
            )));
        }
        Ok(found)
    }

    /// Waits until the stream is connected.
    ///
    /// # Errors
    /// As for [`Connecting::try_finish`].
    pub fn finish(mut self) -> Result<Stream> {
        loop {
            let event = self.socket.events.next_event_within(self.left());
            let event = event.map_err(|error| self.explain(error))?;
            if let Some(stream) = self.advance(&event)? {
                return Ok(stream);
            }
        }
    }

    /// The socket that connects.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// When the connect fails.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The id.
    pub fn id(&self) -> &CmId {
        &self.socket.id
    }

    fn resolve_address(&self) -> Result<()> {
        let id = &self.socket.id;
        address_turn::start(id, self.options.source, self.destination, self.deadline)
    }

    fn advance(&mut self, event: &Event) -> Result<Option<Stream>> {
        let advanced = self.take_step(event);
        advanced.map_err(|error| self.explain(error))
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<Stream>> {
        match (self.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => {
                self.step = Step::ResolveRoute;
                self.socket.id.resolve_route(self.left())?;
            }
            (Step::ResolveAddress, EventType::AddrError)
                if address_turn::is_over(event, self.deadline) =>
            {
                self.resolve_address()?;
            }
            (Step::ResolveRoute, EventType::RouteResolved) => {
                self.step = Step::Connect;
                let (id, events) = (self.socket.id.clone(), self.socket.events.clone());
                let core = Core::new(id, events, &self.options)?;
                let param = ConnParam {
                    private_data: core.conn_data().into_boxed_slice(),
                    // iWARP reads during the connect.
                    initiator_depth: u8::from(core.is_iwarp()),
                    ..conn_param()
                };
                self.core = Some(core);
                self.socket.id.connect(&param)?;
            }
            (Step::Connect, EventType::Established) => {
                let Some(core) = self.core.take() else {
                    return Ok(None);
                };
                core.connected(event.private_data(), true)?;
                return Ok(Some(Stream::new(core)));
            }
            (step, other) => {
                let wanted = "the step's success";
                let unexpected = || Error::invalid(step, "event", wanted, other);
                return Err(event.failure().unwrap_or_else(unexpected));
            }
        }
        Ok(None)
    }

    fn explain(&self, mut error: Error) -> Error {
        if let Cause::TimedOut { after_ms, .. } | Cause::GroupSilent { after_ms, .. } =
            &mut error.cause
        {
            *after_ms = self.started.elapsed().as_millis() as u64;
        }
        if error.step == Step::Event {
            error.step = self.step;
        }
        let known = self.socket.id.addresses().unwrap_or_default();
        error.between(known.local, known.remote.or(Some(self.destination.into())))
    }

    fn left(&self) -> Duration {
        // The provider rejects a zero timeout.
        deadline::left(self.deadline).max(Duration::from_millis(1))
    }
}

impl AsFd for Connecting {
    /// Readable while there is something for [`Connecting::try_finish`] to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Runner for Connecting {
    type Prize = Stream;

    fn take_events(&mut self) -> Result<Option<Stream>> {
        loop {
            let event = self.socket.events.try_next_event();
            let Some(event) = event.map_err(|error| self.explain(error))? else {
                return Ok(None);
            };
            if let Some(stream) = self.advance(&event)? {
                return Ok(Some(stream));
            }
        }
    }

    fn events(&self) -> &EventChannel {
        &self.socket.events
    }

    fn explain(&self, error: Error) -> Error {
        Self::explain(self, error)
    }
}
