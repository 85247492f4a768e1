//! The active side: connects to a destination within one deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::cm::EventType;
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use super::established::Connection;
use super::inner::Inner;
use super::options::Options;
use super::race::{Race, Runner};
use crate::cm::{CmId, Event, EventChannel};
use crate::resolve::resolve;
use crate::{address_turn, deadline};

/// Creates outgoing connections.
#[derive(Clone, Debug, Default)]
pub struct Connector {
    options: Options,
    source: Option<SocketAddr>,
    provider: Option<Arc<dyn Provider>>,
}

impl Connector {
    /// Creates a connector with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the private data of the request (at most 56 bytes).
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.options.private_data = private_data.into();
        self
    }

    /// Sets the deadline for the whole connect, from name resolution to establishment.
    ///
    /// Several addresses of a name are tried concurrently, so none uses up the time of the others.
    /// The blocking calls cannot interrupt the system's resolver; the time it takes is subtracted
    /// from what remains.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Sets the local address.
    #[must_use]
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the provider; by default the route to the destination decides
    /// ([`crate::provider::towards`]).
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Connects to `host:port`.
    ///
    /// Resolves the name and tries its addresses in order: the next one starts 250 ms after the
    /// previous one, or as soon as that fails (RFC 8305). Returns the first connection and abandons
    /// the other attempts. If all fail, returns the last error, with the earlier ones attached.
    ///
    /// # Errors
    /// The name is unknown, the destination is unreachable, no listener is there, the peer rejects,
    /// or the deadline passes: [`Error`] reports the cause and the step.
    pub fn connect(&self, destination: &str) -> Result<Connection> {
        let deadline = deadline::after(self.options.timeout);
        let resolved = resolve(destination)?.into_iter();
        let addresses: Vec<SocketAddr> = resolved.map(|each| each.addr).collect();
        match addresses[..] {
            [only] => self.connect_by(only, deadline),
            _ => {
                let start = |address, deadline| Attempt::start(self, address, deadline);
                Race::new(start, destination, addresses, deadline).run()
            }
        }
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// As for [`Connector::connect`].
    pub fn connect_to(&self, destination: SocketAddr) -> Result<Connection> {
        self.connect_by(destination, deadline::after(self.options.timeout))
    }

    fn connect_by(&self, destination: SocketAddr, deadline: Instant) -> Result<Connection> {
        let mut attempt = Attempt::start(self, destination, deadline)?;
        loop {
            let event = attempt.events.next_event_within(attempt.left());
            let event = event.map_err(|error| attempt.explain(error))?;
            if let Some(connection) = attempt.advance(&event)? {
                return Ok(connection);
            }
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timeout_of_connect(&self) -> Duration {
        self.options.timeout
    }
}

/// One attempt at one address, driven by events.
#[derive(Debug)]
pub(crate) struct Attempt {
    options: Options,
    source: Option<SocketAddr>,
    id: CmId,
    events: EventChannel,
    destination: SocketAddr,
    started: Instant,
    deadline: Instant,
    step: Step,
    inner: Option<Arc<Inner>>,
}

impl Attempt {
    /// Starts to resolve the destination.
    pub(crate) fn start(
        connector: &Connector,
        destination: SocketAddr,
        deadline: Instant,
    ) -> Result<Self> {
        let provider = match &connector.provider {
            Some(provider) => provider.clone(),
            None => crate::provider::towards(connector.source, destination)?.provider,
        };
        let events = EventChannel::open_on(provider)?;
        let id = CmId::new(&events)?;
        let (options, step) = (connector.options.clone(), Step::ResolveAddress);
        let attempt = Self {
            options,
            source: connector.source,
            id,
            events,
            destination,
            started: Instant::now(),
            deadline,
            step,
            inner: None,
        };
        let started = attempt.resolve_address();
        started.map_err(|error| attempt.explain(error))?;
        Ok(attempt)
    }

    fn resolve_address(&self) -> Result<()> {
        address_turn::start(&self.id, self.source, self.destination, self.deadline)
    }

    /// Handles the event that ends a step and starts the next step. Returns the connection after
    /// the last one.
    pub(crate) fn advance(&mut self, event: &Event) -> Result<Option<Connection>> {
        let advanced = self.take_step(event);
        advanced.map_err(|error| self.explain(error))
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<Connection>> {
        match (self.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => {
                self.step = Step::ResolveRoute;
                self.id.resolve_route(self.left())?;
            }
            (Step::ResolveAddress, EventType::AddrError)
                if address_turn::is_over(event, self.deadline) =>
            {
                self.resolve_address()?;
            }
            (Step::ResolveRoute, EventType::RouteResolved) => {
                self.step = Step::Connect;
                let inner = Inner::new(self.id.clone(), self.events.clone(), &self.options)?;
                self.inner = Some(inner);
                self.id.connect(&self.options.conn_param())?;
            }
            (Step::Connect, EventType::Established) => {
                let private_data = event.private_data().to_vec();
                let made = self.inner.take();
                return Ok(made.map(|inner| Connection::new(inner, private_data)));
            }
            (step, other) => {
                let wanted = "the step's success";
                let unexpected = || Error::invalid(step, "event", wanted, other);
                return Err(event.failure().unwrap_or_else(unexpected));
            }
        }
        Ok(None)
    }

    /// Adds both ends' addresses to an error. For a missed deadline, also adds the attempt's
    /// duration and step.
    pub(crate) fn explain(&self, mut error: Error) -> Error {
        if let Cause::TimedOut { after_ms, .. } | Cause::GroupSilent { after_ms, .. } =
            &mut error.cause
        {
            *after_ms = self.started.elapsed().as_millis() as u64;
        }
        if error.step == Step::Event {
            error.step = self.step;
        }
        let known = self.id.addresses().unwrap_or_default();
        error.between(known.local, known.remote.or(Some(self.destination.into())))
    }

    fn left(&self) -> Duration {
        // The provider rejects a zero timeout. A minimal one makes the wait, not the start, report
        // the deadline.
        deadline::left(self.deadline).max(Duration::from_millis(1))
    }
}

impl Runner for Attempt {
    type Prize = Connection;

    fn take_events(&mut self) -> Result<Option<Connection>> {
        loop {
            let event = self.events.try_next_event();
            let Some(event) = event.map_err(|error| self.explain(error))? else {
                return Ok(None);
            };
            if let Some(connection) = self.advance(&event)? {
                return Ok(Some(connection));
            }
        }
    }

    fn events(&self) -> &EventChannel {
        &self.events
    }

    fn explain(&self, error: Error) -> Error {
        Self::explain(self, error)
    }
}
