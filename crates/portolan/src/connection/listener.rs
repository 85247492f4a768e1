//! The passive side: listens, and accepts or rejects connection requests.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use portolan_port_sharing::room;
use portolan_provider::cm::{ConnParam, Ece, EventType, IdOption};
use portolan_provider::error::PrivateData;
use portolan_provider::error::errno::EINVAL;
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::established::Connection;
use super::inner::Inner;
use super::listen_options::ListenOptions;
use super::options::Options;
use crate::cm::{CmId, Event, EventChannel};
use crate::deadline;
use crate::domain::Domain;
use crate::ready_set::ReadySet;
use crate::resolve::resolve_passive;

/// Attempts to find a port that is free with all providers.
const PORT_ATTEMPTS: u32 = 8;

/// Listens on an address.
///
/// ```
/// use portolan::{Connector, Listener};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let client = std::thread::spawn(move || Connector::new().connect_to(address));
/// let incoming = listener.accept()?;
/// println!("a request from {:?}", incoming.peer_addr());
/// let connection = incoming.accept()?;
/// # drop((connection, client.join().unwrap()?));
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    /// One door for each provider; at least one.
    doors: Vec<Door>,
    /// With several doors: readable while a request is queued at any of them.
    any: Option<ReadySet>,
    /// The door to check first. It rotates, so that a flood at one door does not starve the others.
    turn: AtomicUsize,
    /// Why providers were left out: they listen on none of this machine's addresses.
    left_out: Vec<Error>,
    /// Why no further requests can arrive.
    ended: OnceLock<Error>,
}

/// The listening id at one provider.
#[derive(Debug)]
struct Door {
    id: CmId,
    events: EventChannel,
}

impl Door {
    fn open(
        provider: Arc<dyn Provider>,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self> {
        let events = EventChannel::open_on(provider)?;
        let id = CmId::with_service(&events, options.transport.service())?;
        let explain = |error: Error| error.between(Some(address.into()), None);
        if options.only_v6 && address.is_ipv6() && address.ip().is_unspecified() {
            id.set_option(IdOption::AfOnly(true)).map_err(explain)?;
        }
        id.bind(address).map_err(explain)?;
        id.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))
            .map_err(explain)?;
        Ok(Self { id, events })
    }

    /// The listening address, with its port.
    fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.id.addresses()?.local.and_then(|local| local.inet());
        local.ok_or(Error::new(
            Step::Query,
            Cause::NoSuchObject("the listener's address"),
        ))
    }
}

/// A connection request. Accept or reject it; dropping it rejects.
///
/// ```
/// use portolan::{Cause, Connector, Listener};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let connector = Connector::new().private_data(*b"version 1");
/// let client = std::thread::spawn(move || connector.connect_to(address));
/// let incoming = listener.accept()?;
/// if !incoming.private_data().starts_with(b"version 2") {
///     incoming.reject(b"only version 2")?;
/// }
/// let error = client.join().unwrap().unwrap_err();
/// assert!(error.is_refused());
/// # Ok::<(), portolan::Error>(())
/// ```
pub struct Incoming {
    id: CmId,
    request: ConnParam,
}

impl Listener {
    /// Listens on `addr:port`, `name:port` or `:port` (all addresses).
    ///
    /// Port 0 selects a free port, and so does an address without a port (`127.0.0.1`, `localhost`): [`local_addr`] has
    /// the port.
    ///
    /// [`local_addr`]: Self::local_addr
    ///
    /// # Errors
    /// The address is unknown, in use, or belongs to no device.
    pub fn bind(address: &str) -> Result<Self> {
        Self::bind_with(address, &ListenOptions::default())
    }

    /// Listens like [`Listener::bind`], with options.
    ///
    /// # Errors
    /// As for [`Listener::bind`]; `Unsupported` or `InvalidArgument` if the provider lacks the transport service.
    pub fn bind_with(address: &str, options: &ListenOptions) -> Result<Self> {
        let mut last = None;
        for resolved in resolve_passive(address)? {
            match Self::bind_to_with(resolved.addr, options) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error),
            }
        }
        let none = || Cause::NameNotKnown(format!("{address} has no address"));
        Err(last.unwrap_or_else(|| Error::new(Step::Bind, none())))
    }

    /// Listens on a socket address with the provider that owns it ([`crate::provider::at`]).
    ///
    /// For the wildcard address it listens with all providers, on the same port. A provider that
    /// cannot start is left out ([`Listener::left_out`]).
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind_to(address: SocketAddr) -> Result<Self> {
        Self::bind_to_with(address, &ListenOptions::default())
    }

    /// Listens like [`Listener::bind_to`], with options.
    ///
    /// # Errors
    /// As for [`Listener::bind_with`].
    pub fn bind_to_with(address: SocketAddr, options: &ListenOptions) -> Result<Self> {
        if let Some(provider) = &options.provider {
            return Self::bind_on_all(std::slice::from_ref(provider), address, options);
        }
        let (chosen, left_out) = crate::provider::everywhere(address)?;
        let providers: Vec<_> = chosen.into_iter().map(|chosen| chosen.provider).collect();
        Ok(Self {
            left_out,
            ..Self::bind_on_all(&providers, address, options)?
        })
    }

    /// Listens on a socket address of one provider.
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind_on(provider: Arc<dyn Provider>, address: SocketAddr) -> Result<Self> {
        Self::bind_on_all(&[provider], address, &ListenOptions::default())
    }

    /// Creates the listener of an id that already listens.
    pub(crate) fn of_id(id: CmId, events: EventChannel) -> Self {
        Self {
            doors: vec![Door { id, events }],
            any: None,
            turn: AtomicUsize::new(0),
            left_out: Vec::new(),
            ended: OnceLock::new(),
        }
    }

    fn bind_on_all(
        providers: &[Arc<dyn Provider>],
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self> {
        let mut attempts = 1..=PORT_ATTEMPTS;
        let doors = loop {
            let opened = open_doors(providers, address, options);
            // A port that is free at one provider may be in use at the next.
            let is_last = attempts.next().is_none() || address.port() != 0 || providers.len() < 2;
            match opened {
                Err(error) if !is_last && is_taken(&error) => {}
                opened => break opened?,
            }
        };
        let any = match doors.len() {
            1 => None,
            _ => Some(watch_all(&doors)?),
        };
        Ok(Self {
            doors,
            any,
            turn: AtomicUsize::new(0),
            left_out: Vec::new(),
            ended: OnceLock::new(),
        })
    }

    /// The listening address, with its port.
    ///
    /// # Errors
    /// The provider no longer has the id.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        match self.doors.first() {
            Some(door) => door.local_addr(),
            None => Err(Error::new(Step::Query, Cause::NoSuchObject("the listener"))),
        }
    }

    /// Creates a domain for the listener's connections, on any of its devices. No other peer can access the domain's
    /// memory. Pass it to each accept ([`Options::domain`]).
    ///
    /// # Errors
    /// The providers have no device, or the device's limit of protection domains is reached.
    pub fn domain(&self) -> Result<Domain> {
        let mut devices = Vec::new();
        for door in &self.doors {
            devices.extend(door.events.provider().devices()?);
        }
        Domain::on_first(&devices)
    }

    /// The names of the providers that this listens with.
    pub fn providers(&self) -> impl Iterator<Item = &'static str> {
        self.doors.iter().map(|door| door.events.provider().name())
    }

    /// For a wildcard address: why some providers of this machine were left out.
    pub fn left_out(&self) -> &[Error] {
        &self.left_out
    }

    /// Waits for the next request, without a limit.
    ///
    /// A connect returns only when its request is accepted. One thread that calls [`Connector::connect`] and then `accept`
    /// waits for itself until the connect's deadline: call them in two threads or tasks, as in the
    /// [example](Listener).
    ///
    /// [`Connector::connect`]: crate::Connector::connect
    ///
    /// # Errors
    /// The channel failed; `NoDevice` after the address's device was removed.
    pub fn accept(&self) -> Result<Incoming> {
        if let [door] = &self.doors[..] {
            return self.accept_at(|| door.events.next_event());
        }
        loop {
            if let Some(incoming) = self.try_accept()? {
                return Ok(incoming);
            }
            if is_nonblocking(self.as_fd())? {
                return Err(Error::new(Step::Accept, Cause::WouldBlock));
            }
            self.wait(None)?;
        }
    }

    /// Waits for the next request, at most for `timeout`. With a timeout of zero, takes a request that has arrived.
    ///
    /// # Errors
    /// `TimedOut`, or as for [`Listener::accept`].
    pub fn accept_within(&self, timeout: Duration) -> Result<Incoming> {
        let deadline = deadline::after(timeout);
        if let [door] = &self.doors[..] {
            return self.accept_at(|| {
                let event = door.events.next_event_within(deadline::left(deadline));
                event.map_err(|mut error| {
                    if let Cause::TimedOut { after_ms, .. } = &mut error.cause {
                        *after_ms = timeout.as_millis() as u64;
                    }
                    error
                })
            });
        }
        loop {
            if let Some(incoming) = self.try_accept()? {
                return Ok(incoming);
            }
            let left = deadline::left(deadline);
            if left.is_zero() {
                let (after_ms, retries) = (timeout.as_millis() as u64, 0);
                let late = Error::new(Step::Accept, Cause::TimedOut { after_ms, retries });
                return Err(self.explain(late));
            }
            self.wait(Some(left))?;
        }
    }

    /// Takes events until one is a request. The waiting thread then handles the datagrams that bring it.
    fn accept_at(&self, next: impl Fn() -> Result<Event>) -> Result<Incoming> {
        loop {
            self.check()?;
            let event = next().map_err(|mut error| {
                error.step = Step::Accept;
                self.explain(error)
            })?;
            if let Some(incoming) = self.take(&event)? {
                return Ok(incoming);
            }
        }
    }

    /// Adds the listening address to an error.
    fn explain(&self, error: Error) -> Error {
        let local = self.local_addr().ok();
        error.between(local.map(Into::into), None)
    }

    /// Returns the next request if one has arrived.
    ///
    /// # Errors
    /// As for [`Listener::accept`].
    pub fn try_accept(&self) -> Result<Option<Incoming>> {
        self.check()?;
        let count = self.doors.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for at in 0..count {
            let door = &self.doors[first.wrapping_add(at) % count];
            while let Some(event) = door.events.try_next_event()? {
                if let Some(incoming) = self.take(&event)? {
                    return Ok(Some(incoming));
                }
            }
        }
        Ok(None)
    }

    /// Sleeps until a request may be available, or until `timeout`.
    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or_default());
        let fd = self.as_fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(os_error("poll", errno)),
        }
    }

    /// As [`AsFd::as_fd`], but fails if no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        match &self.any {
            Some(any) => Ok(any.as_fd()),
            None => self.doors[0].events.descriptor(),
        }
    }

    /// Fails if no further requests can arrive.
    fn check(&self) -> Result<()> {
        self.ended.get().cloned().map_or(Ok(()), Err)
    }

    /// Returns the request in an event; an error if the event ends the listener.
    fn take(&self, event: &Event) -> Result<Option<Incoming>> {
        if let Some(mut error) = event.failure() {
            error.step = Step::Accept;
            return Err(self.ended.get_or_init(|| error).clone());
        }
        Ok(Incoming::from_event(event))
    }
}

impl AsFd for Listener {
    /// A descriptor that is readable while a request is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.any {
            Some(any) => any.as_fd(),
            None => self.doors[0].events.as_fd(),
        }
    }
}

/// Opens a door at each provider, all on the port that the first one selects.
fn open_doors(
    providers: &[Arc<dyn Provider>],
    mut address: SocketAddr,
    options: &ListenOptions,
) -> Result<Vec<Door>> {
    let mut doors = Vec::with_capacity(providers.len());
    for provider in providers {
        let door = Door::open(provider.clone(), address, options)?;
        address.set_port(door.local_addr()?.port());
        doors.push(door);
    }
    Ok(doors)
}

fn is_taken(error: &Error) -> bool {
    matches!(error.cause, Cause::AddressInUse { .. })
}

/// Creates a descriptor that is readable while any door's is.
fn watch_all(doors: &[Door]) -> Result<ReadySet> {
    let any = ReadySet::new(Step::Accept)?;
    for door in doors {
        any.add(door.events.descriptor()?, Step::Accept)?;
    }
    Ok(any)
}

fn is_nonblocking(fd: BorrowedFd<'_>) -> Result<bool> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| os_error("fcntl", errno))?;
    Ok(flags.contains(rustix::fs::OFlags::NONBLOCK))
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(Step::Accept, room::cause(call, errno))
}

impl Incoming {
    fn from_event(event: &Event) -> Option<Self> {
        if event.event_type() != EventType::ConnectRequest {
            return None;
        }
        let request = event.conn()?.clone();
        Some(Self {
            id: event.id().clone(),
            request,
        })
    }

    /// The peer's private data: the whole field of the request, zero-padded.
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.addresses().ok()?.remote?.inet()
    }

    /// The vendor options of the request ([`Options::ece`]); zeros if it has none.
    pub fn ece(&self) -> Ece {
        self.id.remote_ece()
    }

    pub(crate) fn into_parts(self) -> (CmId, ConnParam) {
        (self.id, self.request)
    }

    /// Accepts with default options.
    ///
    /// # Errors
    /// As for [`Incoming::accept_with`].
    pub fn accept(self) -> Result<Connection> {
        self.accept_with(&Options::default())
    }

    /// Accepts the request and waits until the peer confirms. A slow peer delays only this call, so a listener with many
    /// clients accepts in several threads or tasks. If the peer has closed the connection meanwhile, what it sent before
    /// can still be received.
    ///
    /// # Errors
    /// The peer withdrew (`Disconnected`), did not confirm within the deadline, or the options
    /// exceed the device's limits. A peer that still waits receives a reject.
    pub fn accept_with(self, options: &Options) -> Result<Connection> {
        let deadline = deadline::after(options.timeout);
        let withdrawn = |error| withdrawn(&self.id, error);
        let (inner, param) = self.prepare(options, deadline).map_err(withdrawn)?;
        let events = inner.events.clone();
        // This thread is the one that waits for the peer's confirmation. Management datagrams wait for it from here on,
        // so it has nothing else left to do than to reply.
        let _attendance = events.attend();
        self.id.accept(&param).map_err(withdrawn)?;
        loop {
            let left = deadline::left(deadline);
            let event = inner.events.next_event_within(left);
            let event = event.map_err(|error| unconfirmed(&inner, options, error))?;
            if let Some(established) = accept_outcome(&inner, &event) {
                established?;
                return Ok(Connection::new(inner, self.request.private_data.into_vec()));
            }
        }
    }

    /// Prepares the id and sends the reply.
    #[cfg(feature = "tokio")]
    pub(crate) fn start_accept(
        self,
        options: &Options,
        deadline: Instant,
    ) -> Result<(Arc<Inner>, ConnParam)> {
        let withdrawn = |error| withdrawn(&self.id, error);
        let (inner, param) = self.prepare(options, deadline).map_err(withdrawn)?;
        self.id.accept(&param).map_err(withdrawn)?;
        Ok((inner, self.request))
    }

    /// Moves the id to its own channel and creates its queue pair. Returns the parameters of the reply. Fails if the
    /// deadline has passed.
    fn prepare(&self, options: &Options, deadline: Instant) -> Result<(Arc<Inner>, ConnParam)> {
        if deadline::left(deadline).is_zero() {
            let known = self.id.addresses().unwrap_or_default();
            return Err(deadline::passed(Step::Accept).between(known.local, known.remote));
        }
        let events = EventChannel::open_on(self.id.provider())?;
        self.id.migrate(&events, options.timeout)?;
        self.id.set_local_ece(options.ece)?;
        let inner = Inner::new(self.id.clone(), events, options)?;
        let mut param = options.conn_param(inner.work.transport);
        // Neither side may use more than the other supports.
        param.responder_resources = param
            .responder_resources
            .min(self.request.responder_resources);
        param.initiator_depth = param.initiator_depth.min(self.request.initiator_depth);
        Ok((inner, param))
    }

    /// Rejects the request with private data for the peer (at most 148 bytes).
    ///
    /// # Errors
    /// The private data is too long, or the peer withdrew.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let private_data = PrivateData::from(&self.request.private_data[..]);
        f.debug_struct("Incoming")
            .field("id", &self.id)
            .field("private_data", &private_data)
            .finish_non_exhaustive()
    }
}

/// The error of an accept after the peer withdrew. Only this side can answer the request: if the
/// id's state has changed, the peer has withdrawn the request or died.
fn withdrawn(id: &CmId, mut error: Error) -> Error {
    let is_withdrawn = matches!(error.cause, Cause::InvalidState { .. });
    if is_withdrawn || has_withdrawn(id, &error) {
        (error.step, error.cause) = (Step::Accept, Cause::Disconnected);
    }
    error
}

/// Whether the peer has withdrawn a request whose accept failed. The kernel's commands say no more than `EINVAL` then, as
/// for a queue pair that the device refuses before. But a request that waits for its answer can be rejected.
pub(crate) fn has_withdrawn(id: &CmId, error: &Error) -> bool {
    let is_over = |cause: &Cause| {
        matches!(
            cause,
            Cause::InvalidState { .. } | Cause::NoSuchObject(_) | Cause::Os { errno: EINVAL, .. }
        )
    };
    is_over(&error.cause) && id.reject(&[]).is_err_and(|error| is_over(&error.cause))
}

/// The error of an accept that the peer did not confirm in time.
pub(crate) fn unconfirmed(inner: &Inner, options: &Options, mut error: Error) -> Error {
    error.step = Step::Accept;
    if let Cause::TimedOut { after_ms, .. } = &mut error.cause {
        *after_ms = options.timeout.as_millis() as u64;
    }
    inner.explain(error)
}

/// Returns the outcome of accepting if the event ends it.
pub(crate) fn accept_outcome(inner: &Inner, event: &Event) -> Option<Result<()>> {
    match event.event_type() {
        EventType::Established => return Some(Ok(())),
        // The peer had this side's reply, since it disconnects: only its RTU was lost. What it sent can be read.
        EventType::Disconnected => {
            inner.end_by(event);
            return Some(Ok(()));
        }
        _ => {}
    }
    event.failure().map(|mut error| {
        error.step = Step::Accept;
        Err(inner.explain(error))
    })
}
