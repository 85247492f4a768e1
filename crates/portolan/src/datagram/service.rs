//! Datagram services: answer resolution requests and receive datagrams.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use portolan_provider::cm::{ConnParam, EventType};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::queues::Queues;
use super::socket::{UDP, send, timed_out, wait_for};
use super::{Datagram, Destination, Options};
use crate::cm::{CmId, Event, EventChannel};
use crate::deadline;
use crate::ready_set::ReadySet;
use crate::resolve::resolve_passive;

/// Maximum number of queued requests.
const BACKLOG: i32 = 128;

/// A service that answers resolution requests and receives its clients' datagrams. It has one queue
/// pair on each device at which it received a request. (The type of service of an id is a
/// [`provider::cm::Service`](crate::provider::cm::Service).)
///
/// ```
/// use portolan::datagram::{Arrival, Options, Service};
/// use std::time::Duration;
///
/// let mut service = Service::bind("127.0.0.1:0", &Options::default())?;
/// # let address = service.local_addr()?.to_string();
/// # let client = std::thread::spawn(move || -> portolan::Result<()> {
/// #     use portolan::datagram::Socket;
/// #     let (mut socket, found) = Socket::connect(&address, &Options::default())?;
/// #     socket.send(&found.destination, b"ahoy", None)?;
/// #     assert_eq!(socket.receive_within(Duration::from_secs(5))?.data, b"ahoy");
/// #     Ok(())
/// # });
/// loop {
///     if let Arrival::Datagram { datagram, qpn } = service.next_within(Duration::from_secs(5))? {
///         let client = service.sender(&datagram, qpn)?;
///         service.send(qpn, &client, &datagram.data, None)?;
///         break;
///     }
/// }
/// # client.join().unwrap()?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct Service {
    listener: CmId,
    events: EventChannel,
    options: Options,
    devices: Vec<OnDevice>,
    /// The device to check first. It rotates, so that no device is always preferred.
    turn: usize,
    /// Errors of dropped queue pairs that no arrival has reported yet, at most one for each device.
    failed: VecDeque<Error>,
    /// A datagram goes before the next request, so that many requests do not keep out the data.
    data_first: bool,
    ready: ReadySet,
}

/// The part of a service on one device.
#[derive(Debug)]
struct OnDevice {
    queues: Queues,
    /// The id of the first request at the device, which owns the queue pair.
    owner: CmId,
}

impl AsFd for Service {
    /// A descriptor that is readable when a check may find something new; see [`Service::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// An event of a service; the result of [`Service::next_within`]. The [module](super) has an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum Arrival {
    /// A client requested the queue pair and was answered.
    Asked {
        /// The client's address.
        peer: Option<SocketAddr>,
        /// The client's private data: the whole field of the request, zero-padded.
        private_data: Vec<u8>,
    },
    /// A request could not be answered, or the service's queue pair on a device failed. The service
    /// continues on other devices, and on this one with the next request.
    Failed(Error),
    /// A datagram arrived.
    Datagram {
        /// The datagram.
        datagram: Datagram,
        /// The receiving queue pair; see [`Service::send`].
        qpn: Qpn,
    },
}

impl Service {
    /// Offers a service at `addr:port`, `name:port` or `:port` (all addresses of the software
    /// devices, unless a provider is pinned). Port 0 selects a free port.
    ///
    /// # Errors
    /// The address is unknown, in use, or belongs to no device.
    pub fn bind(address: &str, options: &Options) -> Result<Self> {
        let mut last = crate::connection::no_address(address);
        for resolved in resolve_passive(address)? {
            match Self::bind_to(resolved.addr, options) {
                Ok(service) => return Ok(service),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn bind_to(address: SocketAddr, options: &Options) -> Result<Self> {
        let events = EventChannel::open_on(crate::provider::at(address)?.provider)?;
        let listener = CmId::with_service(&events, UDP)?;
        let explain = |error: Error| error.between(Some(address.into()), None);
        listener.bind(address).map_err(explain)?;
        listener.listen(BACKLOG).map_err(explain)?;
        let ready = ReadySet::new(Step::Listen)?;
        ready.add(events.descriptor()?, Step::Listen)?;
        Ok(Self {
            listener,
            events,
            options: options.clone(),
            devices: Vec::new(),
            turn: 0,
            failed: VecDeque::new(),
            data_first: false,
            ready,
        })
    }

    /// The service's address, with its port.
    ///
    /// # Errors
    /// The provider no longer has the id.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.listener.addresses()?.local;
        local.and_then(|local| local.inet()).ok_or(Error::new(
            Step::Query,
            Cause::NoSuchObject("the service's address"),
        ))
    }

    /// Returns the next request, which it answers, or datagram, if one has arrived.
    ///
    /// # Errors
    /// Errors of the channels.
    pub fn try_next(&mut self) -> Result<Option<Arrival>> {
        if let Some(error) = self.failed.pop_front() {
            return Ok(Some(Arrival::Failed(error)));
        }
        if std::mem::take(&mut self.data_first)
            && let Some(arrival) = self.receive()
        {
            return Ok(Some(arrival));
        }
        while let Some(event) = self.events.try_next_event()? {
            if let Some(arrival) = self.take_event(&event) {
                self.data_first = true;
                return Ok(Some(arrival));
            }
        }
        Ok(self.receive())
    }

    /// Waits for a request, which it answers, or a datagram, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; errors of the channels.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Arrival> {
        let deadline = deadline::after(timeout);
        loop {
            if let Some(arrival) = self.try_next()? {
                return Ok(arrival);
            }
            if deadline::left(deadline).is_zero() {
                return Err(timed_out(Step::Receive, timeout));
            }
            if !self.arm() {
                wait_for(&[self.as_fd()], deadline)?;
            }
        }
    }

    /// The sender of a datagram, as a destination for the answer.
    ///
    /// # Errors
    /// The datagram's destination address no longer belongs to the device; errors of creating an
    /// address handle.
    pub fn sender(&self, datagram: &Datagram, qpn: Qpn) -> Result<Destination> {
        let on = self.devices.iter().find(|on| on.queues.qpn() == qpn);
        on.ok_or_else(no_queue_pair)?.queues.sender(datagram)
    }

    /// Sends a datagram from the queue pair `qpn`; see [`super::Socket::send`].
    ///
    /// # Errors
    /// `NoSuchObject` if the service has no such queue pair; otherwise as for [`super::Socket::send`].
    pub fn send(
        &mut self,
        qpn: Qpn,
        to: &Destination,
        data: &[u8],
        imm_data: Option<u32>,
    ) -> Result<()> {
        let on = self.devices.iter_mut().find(|on| on.queues.qpn() == qpn);
        send(
            &mut on.ok_or_else(no_queue_pair)?.queues,
            to,
            data,
            imm_data,
        )
    }

    /// Arms the descriptor, for callers that wait by themselves. Returns whether something is available already.
    ///
    /// Call it after a check that found nothing ([`Service::try_next`], [`Service::try_send`]). If it returns
    /// `false`, wait until the descriptor is readable and check again.
    pub fn arm(&mut self) -> bool {
        let (mut is_ready, mut broken) = (false, None);
        for (at, on) in self.devices.iter_mut().enumerate() {
            match on.queues.arm() {
                Ok(ready) => is_ready |= ready,
                Err(error) => broken = Some((at, error)),
            }
        }
        if let Some((at, error)) = broken {
            self.failed.push_back(error);
            self.devices.remove(at);
            return true;
        }
        is_ready
    }

    /// As [`Service::arm`], for a caller that waits only for sends of the queue pair `qpn`.
    #[cfg(feature = "tokio")]
    pub(crate) fn arm_for_sends(&mut self, qpn: Qpn) -> Result<bool> {
        let on = self.devices.iter_mut().find(|on| on.queues.qpn() == qpn);
        on.ok_or_else(no_queue_pair)?.queues.arm_for_sends()
    }

    /// Posts a datagram from the queue pair `qpn` if a send buffer is free; returns whether one was.
    ///
    /// # Errors
    /// As for [`Service::send`].
    pub fn try_send(
        &mut self,
        qpn: Qpn,
        to: &Destination,
        data: &[u8],
        imm_data: Option<u32>,
    ) -> Result<bool> {
        let on = self.devices.iter_mut().find(|on| on.queues.qpn() == qpn);
        let queues = &mut on.ok_or_else(no_queue_pair)?.queues;
        queues.send(to, data, imm_data)
    }

    fn receive(&mut self) -> Option<Arrival> {
        let count = self.devices.len();
        for offset in 0..count {
            let at = (self.turn + offset) % count;
            let queues = &mut self.devices[at].queues;
            match queues.receive() {
                Ok(None) => {}
                Ok(Some(datagram)) => {
                    let qpn = queues.qpn();
                    self.turn = at + 1;
                    return Some(Arrival::Datagram { datagram, qpn });
                }
                Err(error) => return Some(self.let_go(at, error)),
            }
        }
        None
    }

    /// Drops a failed queue pair, for example after the removal of its device. The other devices'
    /// queue pairs stay usable.
    fn let_go(&mut self, at: usize, error: Error) -> Arrival {
        self.devices.remove(at);
        Arrival::Failed(error)
    }

    fn take_event(&mut self, event: &Event) -> Option<Arrival> {
        if event.event_type() != EventType::ConnectRequest {
            let failure = event.failure()?;
            let number = event.id().number();
            self.devices.retain(|on| on.owner.number() != number);
            return Some(Arrival::Failed(failure));
        }
        let id = event.id();
        Some(match self.answer(id) {
            Ok(()) => Arrival::Asked {
                peer: id.addresses().ok().and_then(|known| known.remote?.inet()),
                private_data: event.private_data().to_vec(),
            },
            Err(error) => {
                // A client that has gone meanwhile needs no answer.
                let _ = id.reject(&[]);
                Arrival::Failed(error)
            }
        })
    }

    /// Answers a request with the queue pair of the device that received it.
    fn answer(&mut self, id: &CmId) -> Result<()> {
        let index = id.device()?.index();
        let known = self
            .devices
            .iter()
            .position(|on| on.queues.device_index() == index);
        let at = match known {
            Some(at) => at,
            None => {
                let queues = Queues::new(id, &self.options)?;
                self.ready.add(queues.descriptor()?, Step::CreateQp)?;
                let owner = id.clone();
                self.devices.push(OnDevice { queues, owner });
                self.devices.len() - 1
            }
        };
        id.accept(&ConnParam {
            private_data: self.options.private_data.clone().into_boxed_slice(),
            qp_num: self.devices[at].queues.qpn(),
            ..ConnParam::default()
        })
    }
}

fn no_queue_pair() -> Error {
    Error::new(
        Step::PostSend,
        Cause::NoSuchObject("queue pair of the service"),
    )
}
