//! Datagram sockets: towards a service, and in a multicast group.

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

/// What datagram ids are for: the UDP port space.
pub(super) const UDP: ServiceKind = ServiceKind {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};

/// How long posted datagrams may take to leave: no peer can hold them up.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A UD queue pair with its buffers: sends to any destination, and receives.
#[derive(Debug)]
pub struct Socket {
    queues: Queues,
    id: CmId,
    events: EventChannel,
}

/// A service that answered.
#[derive(Debug)]
pub struct Reached {
    /// Its queue pair.
    pub destination: Destination,
    /// Its address.
    pub address: SocketAddr,
    /// Its private data: the whole field of the answer, zero-padded.
    pub private_data: Vec<u8>,
}

/// A multicast group that was joined.
#[derive(Debug)]
pub struct Joined {
    /// Its members.
    pub destination: Destination,
    /// Its address.
    pub group: IpAddr,
}

impl Socket {
    /// Asks the service at `host:port` for its queue pair (service id resolution, IBTA 12.11). The
    /// addresses of a name are asked in their order, each 250 ms after the one before it or as soon as that
    /// failed (RFC 8305); the first that answers is given.
    ///
    /// # Errors
    /// The name is not known, nobody answers in time, or the service refuses (`SidrRefused`): of several
    /// addresses the last error with those before it.
    pub fn connect(destination: &str, options: &Options) -> Result<(Self, Reached)> {
        let deadline = deadline::after(options.timeout);
        let resolved = resolve(destination)?.into_iter();
        let addresses = resolved.map(|each| each.addr);
        Self::ask(destination, addresses, options, deadline)
    }

    /// The same at addresses that are known.
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

    /// Joins a multicast group: to send and receive, or only to send. The device is that of `source`, or
    /// the one that routing chooses for the group.
    ///
    /// # Errors
    /// The address is no group's, there is no route to it, or the device has no room for another.
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

    /// Number of its queue pair.
    pub fn qpn(&self) -> Qpn {
        self.queues.qpn()
    }

    /// Bytes that a datagram holds at most: the payload of one packet.
    pub fn mtu(&self) -> usize {
        self.queues.mtu()
    }

    /// Sends a datagram, with immediate data (network order as the wire has it) if there is any. It
    /// may get lost.
    ///
    /// # Errors
    /// `InvalidArgument` for data longer than [`Socket::mtu`]; `WorkFailed` if the queue pair is in
    /// error.
    pub fn send(&mut self, to: &Destination, data: &[u8], imm_data: Option<u32>) -> Result<()> {
        send(&mut self.queues, to, data, imm_data)
    }

    /// Waits until every datagram that was sent has left: one that ends its socket before may take
    /// them back.
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

    /// Waits for a datagram, for `timeout` at most.
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

    /// Where a datagram came from: to answer it.
    ///
    /// # Errors
    /// The address that it was sent to is not the device's any more; those of making an address handle.
    pub fn sender(&self, datagram: &Datagram) -> Result<Destination> {
        self.queues.sender(datagram)
    }
}

/// Sends, waiting for an earlier datagram to be gone if need be.
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

/// Sleeps until a descriptor is readable, or the deadline.
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

/// The steps towards a destination, and where they failed.
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

    /// Finds the device, and makes the queue pair on it.
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

    /// Starts to resolve the address, for a turn.
    fn start(&self, source: Option<SocketAddr>) -> Result<()> {
        let turn = address_turn::within(self.left());
        let resolving = self.id.resolve_addr(source, self.to, turn);
        resolving.map_err(|error| self.explain(error))
    }

    /// The queue pair, on the device that was found.
    fn socket(&self, options: &Options) -> Result<Socket> {
        let queues = Queues::new(&self.id, options).map_err(|error| self.explain(error))?;
        Ok(Socket {
            queues,
            id: self.id.clone(),
            events: self.events.clone(),
        })
    }

    /// Waits for the event that ends a step well.
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
        if let Cause::TimedOut { after_ms, .. } = &mut error.cause {
            *after_ms = self.started.elapsed().as_millis() as u64;
        }
        if error.step == Step::Event {
            error.step = self.step;
        }
        let known = self.id.addresses().unwrap_or_default();
        error.between(known.local, known.remote.or(Some(self.to.into())))
    }

    fn left(&self) -> Duration {
        // The provider takes no zero: then the wait, not the start, reports the deadline.
        deadline::left(self.deadline).max(Duration::from_millis(1))
    }
}

/// A service that is asked for its queue pair.
struct Question<'a> {
    attempt: Attempt,
    options: &'a Options,
    /// Made once the device is known.
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

    /// Takes the event that ends a step and starts the next one; the answer after the last.
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
