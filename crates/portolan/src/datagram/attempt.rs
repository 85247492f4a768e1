//! The steps towards a service or into a group, driven by events.

use std::net::SocketAddr;
use std::time::Instant;

use portolan_provider::cm::{ConnParam, EventType, JoinKind};
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::queues::Queues;
use super::socket::{Joined, Reached, Socket, UDP};
use super::{Destination, Options};
use crate::cm::{CmId, Event, EventChannel};
use crate::connection::{Attempt, Race, Steps};
use crate::deadline;
use crate::resolve::resolve;

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
    /// * A group is an address without ports: those of `group` and `source` have no meaning (0 will do). All members
    ///   that have joined, also of other programs of this host, get all datagrams of the group on their device.
    /// * A membership is one of a single device: a member at `127.0.0.1` and one at the address of an Ethernet interface do
    ///   not hear each other. For tests on one host, all members use `127.0.0.1:0` as `source`.
    /// * A socket does not receive its own datagrams.
    /// * Dropping the socket leaves the group.
    ///
    /// The example [`chat`](crate::examples::chat) is a whole program.
    ///
    /// ```no_run
    /// use portolan::datagram::{JoinKind, Options, Socket};
    /// use std::time::Duration;
    ///
    /// let group = "239.7.7.7:0".parse()?;
    /// let (mut socket, joined) = Socket::join(group, None, JoinKind::FullMember, &Options::default())?;
    /// socket.send(&joined.destination, b"ahoy, all", None)?;
    /// let datagram = socket.receive_within(Duration::from_secs(1))?;
    /// println!("{}: {:?}", datagram.source, datagram.data);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

fn start(source: Option<SocketAddr>, to: SocketAddr, deadline: Instant) -> Result<Steps> {
    let events = EventChannel::open_on(crate::provider::towards(source, to)?.provider)?;
    let id = CmId::with_service(&events, UDP)?;
    Steps::start(id, events, source, to, deadline)
}

/// Creates the queue pair on the resolved device.
fn socket(steps: &Steps, options: &Options) -> Result<Socket> {
    let queues = Queues::new(&steps.id, options)?;
    Socket::new(queues, steps.id.clone(), steps.events.clone())
}

fn destination(steps: &Steps, queues: &Queues, event: &Event) -> Result<Destination> {
    let ud = event.ud().ok_or_else(|| {
        let what = "event's parameters";
        Error::invalid(steps.step, what, "of a datagram service", "none")
    })?;
    queues.destination(ud)
}

/// A request for a service's queue pair.
pub(crate) struct Question {
    steps: Steps,
    options: Options,
    /// Created once the device is known.
    socket: Option<Socket>,
}

impl Question {
    pub(crate) fn start(to: SocketAddr, options: Options, deadline: Instant) -> Result<Self> {
        Ok(Self {
            steps: start(None, to, deadline)?,
            options,
            socket: None,
        })
    }
}

impl Attempt for Question {
    type Prize = (Socket, Reached);

    fn steps(&self) -> &Steps {
        &self.steps
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<(Socket, Reached)>> {
        let steps = &mut self.steps;
        match (steps.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => {
                self.socket = Some(socket(steps, &self.options)?);
                steps.resolve_route()?;
            }
            (Step::ResolveRoute, EventType::RouteResolved) => {
                let param = ConnParam {
                    private_data: self.options.private_data.clone().into_boxed_slice(),
                    qp_num: self.socket.as_ref().map_or(Qpn::default(), Socket::qpn),
                    ..ConnParam::default()
                };
                steps.step = Step::Connect;
                steps.id.connect(&param)?;
            }
            (Step::Connect, EventType::Established) => {
                let Some(socket) = self.socket.take() else {
                    return Ok(None);
                };
                let reached = Reached {
                    destination: destination(steps, socket.queues(), event)?,
                    address: steps.to,
                    private_data: event.private_data().to_vec(),
                };
                return Ok(Some((socket, reached)));
            }
            _ => return Err(steps.unexpected(event)),
        }
        Ok(None)
    }
}

/// A join of a multicast group.
pub(crate) struct Joining {
    steps: Steps,
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
        Ok(Self {
            steps: start(source, group, deadline)?,
            kind,
            options,
            socket: None,
        })
    }
}

impl Attempt for Joining {
    type Prize = (Socket, Joined);

    fn steps(&self) -> &Steps {
        &self.steps
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<(Socket, Joined)>> {
        let steps = &mut self.steps;
        match (steps.step, event.event_type()) {
            (Step::ResolveAddress, EventType::AddrResolved) => {
                self.socket = Some(socket(steps, &self.options)?);
                steps.step = Step::JoinMulticast;
                steps.id.join_multicast(steps.to.ip(), self.kind, 0)?;
            }
            (Step::JoinMulticast, EventType::MulticastJoin) => {
                let Some(socket) = self.socket.take() else {
                    return Ok(None);
                };
                let joined = Joined {
                    destination: destination(steps, socket.queues(), event)?,
                    group: steps.to.ip(),
                };
                return Ok(Some((socket, joined)));
            }
            _ => return Err(steps.unexpected(event)),
        }
        Ok(None)
    }
}
