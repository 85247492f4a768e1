//! The active side: connects to a destination within one deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use portolan_provider::cm::{EventType, IdOption};
use portolan_provider::traits::Provider;
use portolan_provider::{Error, Result, Step};

use super::established::Connection;
use super::inner::Inner;
use super::options::Options;
use super::race::Race;
use super::steps::{Attempt, Steps};
use super::transport::Transport;
use crate::cm::{CmId, Event, EventChannel};
use crate::deadline;
use crate::resolve::resolve;

/// Creates outgoing connections.
///
/// ```
/// use portolan::{Connector, Listener, Options};
/// use std::time::Duration;
///
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?.to_string();
/// # let server = std::thread::spawn(move || listener.accept()?.accept());
/// let connector = Connector::new()
///     .options(Options::default().receive_size(1 << 16))
///     .timeout(Duration::from_secs(3));
/// let connection = connector.connect(&address)?;
/// println!("from {:?}", connection.local_addr());
/// # drop(server.join().unwrap()?);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Connector {
    options: Options,
    source: Option<SocketAddr>,
    provider: Option<Arc<dyn Provider>>,
    transport: Transport,
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
    /// from what remains. With zero, a connect fails with `TimedOut` and sends nothing.
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

    /// Sets the transport service, which must be that of the listener; by default reliable connections.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
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
    /// or the deadline passes: [`Error`](crate::Error) reports the cause and the step.
    pub fn connect(&self, destination: &str) -> Result<Connection> {
        let deadline = deadline::after(self.options.timeout);
        let resolved = resolve(destination)?.into_iter();
        let addresses: Vec<SocketAddr> = resolved.map(|each| each.addr).collect();
        match addresses[..] {
            [only] => Connecting::start(self, only, deadline)?.finish(),
            _ => {
                let start = |address, deadline| Connecting::start(self, address, deadline);
                Race::new(start, destination, addresses, deadline).run()
            }
        }
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// As for [`Connector::connect`].
    pub fn connect_to(&self, destination: SocketAddr) -> Result<Connection> {
        Connecting::start(self, destination, deadline::after(self.options.timeout))?.finish()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timeout_of_connect(&self) -> Duration {
        self.options.timeout
    }
}

/// One attempt at one address.
#[derive(Debug)]
pub(crate) struct Connecting {
    options: Options,
    steps: Steps,
    inner: Option<Arc<Inner>>,
}

impl Connecting {
    /// Starts to resolve the destination.
    pub(crate) fn start(
        connector: &Connector,
        destination: SocketAddr,
        deadline: Instant,
    ) -> Result<Self> {
        require_port(destination)?;
        let provider = match &connector.provider {
            Some(provider) => provider.clone(),
            None => crate::provider::towards(connector.source, destination)?.provider,
        };
        let events = EventChannel::open_on(provider)?;
        let id = CmId::with_service(&events, connector.transport.service())?;
        if let Some(tos) = connector.options.type_of_service {
            id.set_option(IdOption::Tos(tos))?;
        }
        id.set_local_ece(connector.options.ece)?;
        Ok(Self {
            options: connector.options.clone(),
            steps: Steps::start(id, events, connector.source, destination, deadline)?,
            inner: None,
        })
    }
}

/// Refuses port 0: it means that the caller gave none, and nothing can listen on it.
pub(crate) fn require_port(destination: SocketAddr) -> Result<()> {
    if destination.port() != 0 {
        return Ok(());
    }
    let (what, expected) = ("port of the destination", "1 to 65535, as in host:port");
    let error = Error::invalid(Step::Connect, what, expected, 0);
    Err(error.between(None, Some(destination.into())))
}

impl Attempt for Connecting {
    type Prize = Connection;

    fn steps(&self) -> &Steps {
        &self.steps
    }

    fn prepare(&mut self) -> Result<()> {
        if self.inner.is_none() {
            let (id, events) = (self.steps.id.clone(), self.steps.events.clone());
            self.inner = Some(Inner::new(id, events, &self.options)?);
        }
        Ok(())
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<Connection>> {
        match (self.steps.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => self.steps.resolve_route()?,
            (Step::ResolveRoute, EventType::RouteResolved) => {
                self.steps.step = Step::Connect;
                self.prepare()?;
                let steps = &self.steps;
                let transport = Transport::of(steps.id.service());
                steps.id.connect(&self.options.conn_param(transport))?;
            }
            (Step::Connect, EventType::Established) => {
                let private_data = event.private_data().to_vec();
                let made = self.inner.take();
                return Ok(made.map(|inner| Connection::new(inner, private_data)));
            }
            _ => return Err(self.steps.unexpected(event)),
        }
        Ok(None)
    }
}
