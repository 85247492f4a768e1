//! The passive side: listening, and answering connection requests.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portolan_provider::cm::{ConnParam, EventType};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use super::established::Connection;
use super::inner::Inner;
use super::options::Options;
use crate::cm::{CmId, Event, EventChannel};
use crate::deadline;
use crate::resolve::resolve_passive;

/// Connection requests that may wait to be taken.
const BACKLOG: i32 = 128;

/// Listens on an address.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    events: EventChannel,
    /// Why no request comes any more.
    ended: OnceLock<Error>,
}

/// A connection request, to be accepted or rejected. Dropping it rejects.
#[derive(Debug)]
pub struct Incoming {
    id: CmId,
    request: ConnParam,
}

impl Listener {
    /// Listens on `addr:port`, `name:port` or `:port` (every address). Port 0 takes a free one.
    ///
    /// # Errors
    /// The address is not known, is in use, or belongs to no device.
    pub fn bind(address: &str) -> Result<Self> {
        let mut last = None;
        for resolved in resolve_passive(address)? {
            match Self::bind_to(resolved.addr) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error),
            }
        }
        let none = || Cause::NameNotKnown(format!("{address} has no address"));
        Err(last.unwrap_or_else(|| Error::new(Step::Bind, none())))
    }

    /// Listens on a socket address.
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind_to(address: SocketAddr) -> Result<Self> {
        Self::bind_on(crate::provider::default_provider()?, address)
    }

    /// Listens on a socket address of a provider.
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind_on(provider: Arc<dyn Provider>, address: SocketAddr) -> Result<Self> {
        let events = EventChannel::open_on(provider)?;
        let id = CmId::new(&events)?;
        let explain = |error: Error| error.between(Some(address.into()), None);
        id.bind(address).map_err(explain)?;
        id.listen(BACKLOG).map_err(explain)?;
        let ended = OnceLock::new();
        Ok(Self { id, events, ended })
    }

    /// The address that it listens on, with its port.
    ///
    /// # Errors
    /// The id is gone from its provider.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.id.addresses()?.local.and_then(|local| local.inet());
        local.ok_or(Error::new(
            Step::Query,
            Cause::NoSuchObject("the listener's address"),
        ))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// The channel failed; `NoDevice` once the device of its address is gone.
    pub fn accept(&self) -> Result<Incoming> {
        loop {
            self.check()?;
            if let Some(incoming) = self.take(&self.events.next_event()?)? {
                return Ok(incoming);
            }
        }
    }

    /// Waits for the next request, for `timeout` at most.
    ///
    /// # Errors
    /// `TimedOut`, or as for [`Listener::accept`].
    pub fn accept_within(&self, timeout: Duration) -> Result<Incoming> {
        let deadline = deadline::after(timeout);
        loop {
            self.check()?;
            let left = deadline::left(deadline);
            if let Some(incoming) = self.take(&self.events.next_event_within(left)?)? {
                return Ok(incoming);
            }
        }
    }

    /// The next request if one has arrived.
    ///
    /// # Errors
    /// As for [`Listener::accept`].
    pub fn try_accept(&self) -> Result<Option<Incoming>> {
        self.check()?;
        while let Some(event) = self.events.try_next_event()? {
            if let Some(incoming) = self.take(&event)? {
                return Ok(Some(incoming));
            }
        }
        Ok(None)
    }

    /// Fails if no request can come any more.
    pub(crate) fn check(&self) -> Result<()> {
        self.ended.get().cloned().map_or(Ok(()), Err)
    }

    /// The request that an event brings; the error if it is the end of the listener.
    pub(crate) fn take(&self, event: &Event) -> Result<Option<Incoming>> {
        if let Some(mut error) = event.failure() {
            error.step = Step::Accept;
            return Err(self.ended.get_or_init(|| error).clone());
        }
        Ok(Incoming::from_event(event))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
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

    /// Accepts with default options.
    ///
    /// # Errors
    /// As for [`Incoming::accept_with`].
    pub fn accept(self) -> Result<Connection> {
        self.accept_with(&Options::default())
    }

    /// Accepts, and waits until the peer confirms.
    ///
    /// # Errors
    /// The peer withdrew (`Disconnected`), does not confirm within the deadline, or the options are beyond the
    /// device's limits; the peer is told by a reject where it still waits.
    pub fn accept_with(self, options: &Options) -> Result<Connection> {
        let deadline = deadline::after(options.timeout);
        let (inner, request) = self.start_accept(options)?;
        loop {
            let left = deadline::left(deadline);
            let event = inner.events.next_event_within(left);
            let event = event.map_err(|error| unconfirmed(&inner, options, error))?;
            if let Some(established) = accept_outcome(&inner, &event) {
                established?;
                return Ok(Connection::new(inner, request.private_data.into_vec()));
            }
        }
    }

    /// Moves the id to a channel of its own, makes its queue pair and sends the reply.
    pub(crate) fn start_accept(self, options: &Options) -> Result<(Arc<Inner>, ConnParam)> {
        self.reply(options).map_err(withdrawn)
    }

    fn reply(self, options: &Options) -> Result<(Arc<Inner>, ConnParam)> {
        let provider = self.id.provider();
        let events = EventChannel::open_on(provider)?;
        self.id.migrate(&events, options.timeout)?;
        let inner = Inner::new(self.id.clone(), events, options)?;
        let mut param = options.conn_param();
        // Neither side may use more than the other has.
        param.responder_resources = param
            .responder_resources
            .min(self.request.responder_resources);
        param.initiator_depth = param.initiator_depth.min(self.request.initiator_depth);
        self.id.accept(&param)?;
        Ok((inner, self.request))
    }

    /// Rejects, with private data for the peer (148 bytes at most).
    ///
    /// # Errors
    /// The private data is too long, or the peer withdrew.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }
}

/// The error of an accept that came too late. Nobody else has the id of a request that is not
/// answered yet: if its state is another, the peer has taken the request back, or died.
fn withdrawn(mut error: Error) -> Error {
    if matches!(error.cause, Cause::InvalidState { .. }) {
        (error.step, error.cause) = (Step::Accept, Cause::Disconnected);
    }
    error
}

/// The error of an accept that the peer has not confirmed in time.
pub(crate) fn unconfirmed(inner: &Inner, options: &Options, mut error: Error) -> Error {
    error.step = Step::Accept;
    if let Cause::TimedOut { after_ms, .. } = &mut error.cause {
        *after_ms = options.timeout.as_millis() as u64;
    }
    inner.explain(error)
}

/// Whether an event ends accepting, and how.
pub(crate) fn accept_outcome(inner: &Inner, event: &Event) -> Option<Result<()>> {
    if event.event_type() == EventType::Established {
        return Some(Ok(()));
    }
    event.failure().map(|mut error| {
        error.step = Step::Accept;
        Err(inner.explain(error))
    })
}
