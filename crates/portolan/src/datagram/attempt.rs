//! The steps towards a service or into a group, driven by events.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::cm::{ConnParam, EventType, JoinKind};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::queues::Queues;
use super::socket::{Joined, Reached, Socket, UDP};
use super::{Destination, Options};
use crate::cm::{CmId, Event, EventChannel};
use crate::connection::{Race, Runner};
use crate::resolve::resolve;
use crate::{address_turn, deadline};

impl Socket {
    /// Requests the queue pair of the service at `host:port` (service id resolution, IBTA 12.11).
    ///
    /// The addresses of a name are tried in order: the next one starts 250 ms after the previous
    /// one, or as soon as that fails (RFC 8305). Returns the first answer.
    ///
    /// # Errors
    /// The name is unknown, no answer arrives in time, or the service refuses (`SidrRefused`). For
    /// several addresses: the last error, with the earlier ones attached.
    pub fn connect(destination: &str, options: &Options) -> Result<(Self, Reached)> {
        let deadline = deadline::after(options.timeout);
        let resolved = resolve(destination)?.into_iter();
        let addresses = resolved.map(|each| each.addr);
        Self::ask(destination, addresses, options, deadline)
    }

    /// Like [`Socket::connect`], for resolved addresses.
    ///
    /// # Errors
    /// As for [`Socket::connect`].
    pub fn connect_to(addresses: &[SocketAddr], options: &Options) -> Result<(Self, Reached)> {
        let deadline = deadline::after(options.timeout);
        Self::ask("nobody", addresses.iter().copied(), options, deadline)
    }

    fn ask(
        name: &str,
        addresses: impl IntoIterator<Item = SocketAddr>,
        options: &Options,
        deadline: Instant,
    ) -> Result<(Self, Reached)> {
        let start = |address, deadline| Question::start(address, options.clone(), deadline);
        Race::new(start, name, addresses, deadline).run()
    }

    /// Joins a multicast group, to send and receive or only to send. Uses the device of `source`,
    /// or the one that routing chooses for the group.
    ///
    /// # Errors
    /// The address is not a multicast group, there is no route to it, or a limit of the device is
    /// reached.
    pub fn join(
        group: SocketAddr,
        source: Option<SocketAddr>,
        kind: JoinKind,
        options: &Options,
    ) -> Result<(Self, Joined)> {
        let deadline = deadline::after(options.timeout);
        let start =
            |group, deadline| Joining::start(group, source, kind, options.clone(), deadline);
        Race::new(start, "nobody", [group], deadline).run()
    }
}

/// The steps towards a destination, for error reports.
struct Attempt {
    id: CmId,
    events: EventChannel,
    to: SocketAddr,
    step: Step,
    started: Instant,
    deadline: Instant,
}

impl Attempt {
    fn new(source: Option<SocketAddr>, to: SocketAddr, deadline: Instant) -> Result<Self> {
        let events = EventChannel::open_on(crate::provider::towards(source, to)?.provider)?;
        Ok(Self {
            id: CmId::with_service(&events, UDP)?,
            events,
            to,
            step: Step::ResolveAddress,
            started: Instant::now(),
            deadline,
        })
    }

    /// Starts to resolve the address.
    fn start(&self, source: Option<SocketAddr>) -> Result<()> {
        let started = address_turn::start(&self.id, source, self.to, self.deadline);
        started.map_err(|error| self.explain(error))
    }

    /// Creates the queue pair on the resolved device.
    fn socket(&self, options: &Options) -> Result<Socket> {
        let queues = Queues::new(&self.id, options).map_err(|error| self.explain(error))?;
        Socket::new(queues, self.id.clone(), self.events.clone())
    }

    fn unexpected(&self, event: &Event, expected: EventType) -> Error {
        let other = || Error::invalid(self.step, "event", expected, event.event_type());
        self.explain(event.failure().unwrap_or_else(other))
    }

    fn destination(&self, queues: &Queues, event: &Event) -> Result<Destination> {
        let ud = event.ud().ok_or_else(|| {
            let what = "event's parameters";
            Error::invalid(self.step, what, "of a datagram service", "none")
        })?;
        queues.destination(ud).map_err(|error| self.explain(error))
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
        let known = self.id.addresses().unwrap_or_default();
        error.between(known.local, known.remote.or(Some(self.to.into())))
    }

    fn left(&self) -> Duration {
        // The provider rejects a zero timeout. A minimal one makes the wait, not the start, report
        // the deadline.
        deadline::left(self.deadline).max(Duration::from_millis(1))
    }
}

/// A request for a service's queue pair.
pub(crate) struct Question {
    attempt: Attempt,
    options: Options,
    /// Created once the device is known.
    socket: Option<Socket>,
}

impl Question {
    pub(crate) fn start(to: SocketAddr, options: Options, deadline: Instant) -> Result<Self> {
        let attempt = Attempt::new(None, to, deadline)?;
        attempt.start(None)?;
        Ok(Self {
            attempt,
            options,
            socket: None,
        })
    }

    /// Handles the event that ends a step and starts the next step. Returns the answer after the
    /// last one.
    fn advance(&mut self, event: &Event) -> Result<Option<(Socket, Reached)>> {
        let Self {
            attempt,
            options,
            socket,
        } = self;
        match (attempt.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => {
                *socket = Some(attempt.socket(options)?);
                attempt.step = Step::ResolveRoute;
                attempt.id.resolve_route(attempt.left())?;
            }
            (Step::ResolveAddress, EventType::AddrError)
                if address_turn::is_over(event, attempt.deadline) =>
            {
                attempt.start(None)?;
            }
            (Step::ResolveRoute, EventType::RouteResolved) => {
                let param = ConnParam {
                    private_data: options.private_data.clone().into_boxed_slice(),
                    qp_num: socket.as_ref().map_or(Qpn::default(), Socket::qpn),
                    ..ConnParam::default()
                };
                attempt.step = Step::Connect;
                attempt.id.connect(&param)?;
            }
            (Step::Connect, EventType::Established) => {
                let Some(socket) = socket.take() else {
                    return Ok(None);
                };
                let reached = Reached {
                    destination: attempt.destination(socket.queues(), event)?,
                    address: attempt.to,
                    private_data: event.private_data().to_vec(),
                };
                return Ok(Some((socket, reached)));
            }
            (step, _) => {
                let expected = match step {
                    Step::ResolveAddress => EventType::AddrResolved,
                    Step::ResolveRoute => EventType::RouteResolved,
                    _ => EventType::Established,
                };
                return Err(attempt.unexpected(event, expected));
            }
        }
        Ok(None)
    }
}

impl Runner for Question {
    type Prize = (Socket, Reached);

    fn take_events(&mut self) -> Result<Option<Self::Prize>> {
        loop {
            let event = self.attempt.events.try_next_event();
            let Some(event) = event.map_err(|error| self.explain(error))? else {
                return Ok(None);
            };
            let advanced = self.advance(&event);
            if let Some(prize) = advanced.map_err(|error| self.explain(error))? {
                return Ok(Some(prize));
            }
        }
    }

    fn events(&self) -> &EventChannel {
        &self.attempt.events
    }

    fn explain(&self, error: Error) -> Error {
        self.attempt.explain(error)
    }
}

/// A join of a multicast group.
pub(crate) struct Joining {
    attempt: Attempt,
    source: Option<SocketAddr>,
    kind: JoinKind,
    options: Options,
    /// Created once the device is known.
    socket: Option<Socket>,
}

impl Joining {
    pub(crate) fn start(
        group: SocketAddr,
        source: Option<SocketAddr>,
        kind: JoinKind,
        options: Options,
        deadline: Instant,
    ) -> Result<Self> {
        let attempt = Attempt::new(source, group, deadline)?;
        attempt.start(source)?;
        Ok(Self {
            attempt,
            source,
            kind,
            options,
            socket: None,
        })
    }

    /// Handles the event that ends a step and starts the next step. Returns the membership after the last one.
    fn advance(&mut self, event: &Event) -> Result<Option<(Socket, Joined)>> {
        let attempt = &mut self.attempt;
        match (attempt.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => {
                self.socket = Some(attempt.socket(&self.options)?);
                attempt.step = Step::JoinMulticast;
                attempt.id.join_multicast(attempt.to.ip(), self.kind, 0)?;
            }
            (Step::ResolveAddress, EventType::AddrError)
                if address_turn::is_over(event, attempt.deadline) =>
            {
                attempt.start(self.source)?;
            }
            (Step::JoinMulticast, EventType::MulticastJoin) => {
                let Some(socket) = self.socket.take() else {
                    return Ok(None);
                };
                let joined = Joined {
                    destination: attempt.destination(socket.queues(), event)?,
                    group: attempt.to.ip(),
                };
                return Ok(Some((socket, joined)));
            }
            (step, _) => {
                let expected = match step {
                    Step::ResolveAddress => EventType::AddrResolved,
                    _ => EventType::MulticastJoin,
                };
                return Err(attempt.unexpected(event, expected));
            }
        }
        Ok(None)
    }
}

impl Runner for Joining {
    type Prize = (Socket, Joined);

    fn take_events(&mut self) -> Result<Option<Self::Prize>> {
        loop {
            let event = self.attempt.events.try_next_event();
            let Some(event) = event.map_err(|error| self.explain(error))? else {
                return Ok(None);
            };
            let advanced = self.advance(&event);
            if let Some(prize) = advanced.map_err(|error| self.explain(error))? {
                return Ok(Some(prize));
            }
        }
    }

    fn events(&self) -> &EventChannel {
        &self.attempt.events
    }

    fn explain(&self, error: Error) -> Error {
        self.attempt.explain(error)
    }
}
