//! Datagram sockets: connected to a service, or in a multicast group.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use portolan_provider::cm::{ConnParam, EventType, JoinKind, Service as ServiceKind};
use portolan_provider::verbs::QpType;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{PortSpace, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::queues::Queues;
use super::{Datagram, Destination, Options};
use crate::cm::{CmId, Event, EventChannel};
use crate::connection::{Race, Runner};
use crate::resolve::resolve;
use crate::{address_turn, deadline};

/// The service kind of datagram ids: the UDP port space.
pub(super) const UDP: ServiceKind = ServiceKind {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};

/// Time limit for sending posted datagrams. No peer can delay them.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A UD queue pair with its buffers: sends to any destination, and receives.
#[derive(Debug)]
pub struct Socket {
    queues: Queues,
    id: CmId,
    events: EventChannel,
}

/// The answer of a service.
#[derive(Debug)]
pub struct Reached {
    /// Its queue pair.
    pub destination: Destination,
    /// Its address.
    pub address: SocketAddr,
    /// Its private data: the whole field of the answer, zero-padded.
    pub private_data: Vec<u8>,
}

/// A joined multicast group.
#[derive(Debug)]
pub struct Joined {
    /// The group as a destination.
    pub destination: Destination,
    /// Its address.
    pub group: IpAddr,
}

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
        let start = |address, deadline| Question::start(address, options, deadline);
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
        let mut attempt = Attempt::new(source, group, deadline::after(options.timeout))?;
        let socket = attempt.resolve(source, options)?;
        let joined = socket.id.join_multicast(group.ip(), kind, 0);
        joined.map_err(|error| attempt.explain(error))?;
        attempt.step = Step::JoinMulticast;
        let event = attempt.expect(EventType::MulticastJoin)?;
        let destination = attempt.destination(&socket.queues, &event)?;
        let group = group.ip();
        Ok((socket, Joined { destination, group }))
    }

    /// The local address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.addresses().ok()?.local?.inet()
    }

    /// Its queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.queues.qpn()
    }

    /// Maximum size of a datagram in bytes: the payload of one packet.
    pub fn mtu(&self) -> usize {
        self.queues.mtu()
    }

    /// Sends a datagram, with optional immediate data (in network byte order). The datagram may be
    /// lost.
    ///
    /// # Errors
    /// `InvalidArgument` if the data exceeds [`Socket::mtu`]; `WorkFailed` if the queue pair is in
    /// error.
    pub fn send(&mut self, to: &Destination, data: &[u8], imm_data: Option<u32>) -> Result<()> {
        send(&mut self.queues, to, data, imm_data)
    }

    /// Waits until all posted datagrams are sent. Dropping the socket earlier may discard some.
    ///
    /// # Errors
    /// `WorkFailed` if the queue pair is in error.
    pub fn flush(&mut self) -> Result<()> {
        let deadline = deadline::after(SEND_TIMEOUT);
        while !self.queues.is_drained()? {
            if deadline::left(deadline).is_zero() {
                return Err(timed_out(Step::PostSend, SEND_TIMEOUT));
            }
            if !self.queues.arm()? {
                wait_for(&[self.queues.as_fd()], deadline)?;
            }
        }
        Ok(())
    }

    /// Waits for a datagram, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; `WorkFailed` if the queue pair is in error; `NoDevice` if the device was removed.
    pub fn receive_within(&mut self, timeout: Duration) -> Result<Datagram> {
        let deadline = deadline::after(timeout);
        loop {
            if let Some(datagram) = self.queues.receive()? {
                return Ok(datagram);
            }
            while let Some(event) = self.events.try_next_event()? {
                if let Some(error) = event.failure() {
                    return Err(error);
                }
            }
            if deadline::left(deadline).is_zero() {
                return Err(timed_out(Step::Transfer, timeout));
            }
            if !self.queues.arm()? {
                wait_for(&[self.queues.as_fd(), self.events.as_fd()], deadline)?;
            }
        }
    }

    /// The sender of a datagram, as a destination for the answer.
    ///
    /// # Errors
    /// The datagram's destination address no longer belongs to the device; errors of creating an
    /// address handle.
    pub fn sender(&self, datagram: &Datagram) -> Result<Destination> {
        self.queues.sender(datagram)
    }
}

/// Sends a datagram; waits until a send buffer is free.
pub(super) fn send(
    queues: &mut Queues,
    to: &Destination,
    data: &[u8],
    imm_data: Option<u32>,
) -> Result<()> {
    let deadline = deadline::after(SEND_TIMEOUT);
    while !queues.send(to, data, imm_data)? {
        if deadline::left(deadline).is_zero() {
            return Err(timed_out(Step::PostSend, SEND_TIMEOUT));
        }
        if !queues.arm()? {
            wait_for(&[queues.as_fd()], deadline)?;
        }
    }
    Ok(())
}

/// Sleeps until a descriptor is readable or the deadline passes.
pub(super) fn wait_for(descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let left = deadline::left(deadline);
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => {
            let (call, errno) = ("poll", errno.raw_os_error());
            Err(Error::new(Step::Transfer, Cause::Os { call, errno }))
        }
    }
}

pub(super) fn timed_out(step: Step, timeout: Duration) -> Error {
    let (after_ms, retries) = (timeout.as_millis() as u64, 0);
    Error::new(step, Cause::TimedOut { after_ms, retries })
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

    /// Resolves the device and creates the queue pair on it.
    fn resolve(&mut self, source: Option<SocketAddr>, options: &Options) -> Result<Socket> {
        self.start(source)?;
        loop {
            let event = self.next()?;
            match event.event_type() {
                EventType::AddrResolved => return self.socket(options),
                EventType::AddrError if address_turn::is_over(&event, self.deadline) => {
                    self.start(source)?;
                }
                _ => return Err(self.unexpected(&event, EventType::AddrResolved)),
            }
        }
    }

    /// Starts to resolve the address.
    fn start(&self, source: Option<SocketAddr>) -> Result<()> {
        let started = address_turn::start(&self.id, source, self.to, self.deadline);
        started.map_err(|error| self.explain(error))
    }

    /// Creates the queue pair on the resolved device.
    fn socket(&self, options: &Options) -> Result<Socket> {
        let queues = Queues::new(&self.id, options).map_err(|error| self.explain(error))?;
        Ok(Socket {
            queues,
            id: self.id.clone(),
            events: self.events.clone(),
        })
    }

    /// Waits for the event that completes a step successfully.
    fn expect(&self, expected: EventType) -> Result<Event> {
        let event = self.next()?;
        match event.event_type() == expected {
            true => Ok(event),
            false => Err(self.unexpected(&event, expected)),
        }
    }

    fn next(&self) -> Result<Event> {
        let event = self.events.next_event_within(self.left());
        event.map_err(|error| self.explain(error))
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
struct Question<'a> {
    attempt: Attempt,
    options: &'a Options,
    /// Created once the device is known.
    socket: Option<Socket>,
}

impl<'a> Question<'a> {
    fn start(to: SocketAddr, options: &'a Options, deadline: Instant) -> Result<Self> {
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
                    destination: attempt.destination(&socket.queues, event)?,
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

impl Runner for Question<'_> {
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
