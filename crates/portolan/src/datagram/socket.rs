//! Datagram sockets: connected to a service, or in a multicast group.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use portolan_provider::cm::Service as ServiceKind;
use portolan_provider::verbs::QpType;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{PortSpace, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::queues::Queues;
use super::{Datagram, Destination};
use crate::cm::{CmId, EventChannel};
use crate::deadline;
use crate::ready_set::ReadySet;

/// The service kind of datagram ids: the UDP port space.
pub(super) const UDP: ServiceKind = ServiceKind {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};

/// Time limit for sending posted datagrams. No peer can delay them.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A UD queue pair with its buffers: sends to any destination, and receives.
///
/// ```
/// use portolan::datagram::{Arrival, Options, Service, Socket};
/// use std::time::Duration;
///
/// let mut service = Service::bind("127.0.0.1:0", &Options::default())?;
/// let address = service.local_addr()?.to_string();
/// let client = std::thread::spawn(move || -> portolan::Result<()> {
///     let (mut socket, found) = Socket::connect(&address, &Options::default())?;
///     socket.send(&found.destination, b"ahoy", None)?;
///     socket.flush()
/// });
/// loop {
///     if let Arrival::Datagram { datagram, .. } = service.next_within(Duration::from_secs(5))? {
///         assert_eq!(datagram.data, b"ahoy");
///         break;
///     }
/// }
/// # client.join().unwrap()?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct Socket {
    queues: Queues,
    id: CmId,
    events: EventChannel,
    ready: ReadySet,
}

/// The answer of a service to [`Socket::connect`].
///
/// ```
/// use portolan::datagram::{Options, Service, Socket};
/// # use std::time::Duration;
///
/// let options = Options::default().private_data(*b"version 2");
/// let mut service = Service::bind("127.0.0.1:0", &options)?;
/// # let address = service.local_addr()?.to_string();
/// # std::thread::spawn(move || while service.next_within(Duration::from_secs(10)).is_ok() {});
/// let (socket, reached) = Socket::connect(&address, &Options::default())?;
/// assert_eq!(reached.address.to_string(), address);
/// assert!(reached.private_data.starts_with(b"version 2"));
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Reached {
    /// Its queue pair.
    pub destination: Destination,
    /// Its address.
    pub address: SocketAddr,
    /// Its private data: the whole field of the answer, zero-padded.
    pub private_data: Vec<u8>,
}

/// A joined multicast group.
///
/// ```
/// use portolan::datagram::{JoinKind, Options, Socket};
/// use std::time::Duration;
///
/// let group = "239.1.7.40:0".parse().unwrap();
/// let interface = Some("127.0.0.1:0".parse().unwrap());
/// let join = || Socket::join(group, interface, JoinKind::FullMember, &Options::default());
/// let (mut one, joined) = join()?;
/// let (mut other, _) = join()?;
/// one.send(&joined.destination, b"all hands", None)?;
/// assert_eq!(other.receive_within(Duration::from_secs(5))?.data, b"all hands");
/// assert_eq!(joined.group, group.ip());
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Joined {
    /// The group as a destination.
    pub destination: Destination,
    /// Its address.
    pub group: IpAddr,
}

impl Socket {
    pub(super) fn new(queues: Queues, id: CmId, events: EventChannel) -> Result<Self> {
        let ready = ReadySet::new(Step::CreateQp)?;
        ready.add(queues.descriptor()?, Step::CreateQp)?;
        ready.add(events.descriptor()?, Step::CreateQp)?;
        Ok(Self {
            queues,
            id,
            events,
            ready,
        })
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.queues
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

    /// Sends a datagram, with optional immediate data, whose byte order is explained at
    /// [`Message::immediate`](crate::Message::immediate). The datagram may be lost.
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
        self.flush_until(deadline::after(SEND_TIMEOUT))
    }

    pub(super) fn flush_until(&mut self, deadline: Instant) -> Result<()> {
        while !self.queues.is_drained()? {
            if deadline::left(deadline).is_zero() {
                return Err(timed_out(Step::PostSend, SEND_TIMEOUT));
            }
            if !self.queues.arm_for_sends()? {
                wait_for(&[self.queues.as_fd()], deadline)?;
            }
        }
        Ok(())
    }

    /// Returns the next datagram if one has arrived.
    ///
    /// # Errors
    /// `WorkFailed` if the queue pair is in error; `NoDevice` if the device was removed.
    pub fn try_receive(&mut self) -> Result<Option<Datagram>> {
        if let Some(datagram) = self.queues.receive()? {
            return Ok(Some(datagram));
        }
        while let Some(event) = self.events.try_next_event()? {
            if let Some(error) = event.failure() {
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Posts a datagram if a send buffer is free; returns whether one was.
    ///
    /// # Errors
    /// As for [`Socket::send`].
    pub fn try_send(
        &mut self,
        to: &Destination,
        data: &[u8],
        imm_data: Option<u32>,
    ) -> Result<bool> {
        self.queues.send(to, data, imm_data)
    }

    /// Waits for a datagram, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`; `WorkFailed` if the queue pair is in error; `NoDevice` if the device was removed.
    pub fn receive_within(&mut self, timeout: Duration) -> Result<Datagram> {
        let deadline = deadline::after(timeout);
        loop {
            if let Some(datagram) = self.try_receive()? {
                return Ok(datagram);
            }
            if deadline::left(deadline).is_zero() {
                return Err(timed_out(Step::Receive, timeout));
            }
            if !self.queues.arm()? {
                wait_for(&[self.queues.as_fd(), self.events.as_fd()], deadline)?;
            }
        }
    }

    /// Returns whether all posted datagrams are sent.
    ///
    /// # Errors
    /// `WorkFailed` if the queue pair is in error.
    pub fn is_flushed(&mut self) -> Result<bool> {
        self.queues.is_drained()
    }

    /// Arms the descriptor, for callers that wait by themselves. Returns whether a completion is available already.
    ///
    /// Call it after a check that found nothing ([`Socket::try_receive`], [`Socket::try_send`],
    /// [`Socket::is_flushed`]). If it returns `false`, wait until the descriptor is readable and check again.
    /// A datagram that was not taken counts as available.
    ///
    /// # Errors
    /// As for [`Socket::try_receive`].
    pub fn arm(&mut self) -> Result<bool> {
        self.queues.arm()
    }

    /// As [`Socket::arm`], for a caller that waits only for sends.
    #[cfg(feature = "tokio")]
    pub(crate) fn arm_for_sends(&mut self) -> Result<bool> {
        self.queues.arm_for_sends()
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

impl AsFd for Socket {
    /// A descriptor that is readable when a check may find something new; see [`Socket::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// Sends a datagram; waits until a send buffer is free.
pub(super) fn send(
    queues: &mut Queues,
    to: &Destination,
    data: &[u8],
    imm_data: Option<u32>,
) -> Result<()> {
    send_until(queues, to, data, imm_data, deadline::after(SEND_TIMEOUT))
}

pub(super) fn send_until(
    queues: &mut Queues,
    to: &Destination,
    data: &[u8],
    imm_data: Option<u32>,
    deadline: Instant,
) -> Result<()> {
    while !queues.send(to, data, imm_data)? {
        if deadline::left(deadline).is_zero() {
            return Err(timed_out(Step::PostSend, SEND_TIMEOUT));
        }
        if !queues.arm_for_sends()? {
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
