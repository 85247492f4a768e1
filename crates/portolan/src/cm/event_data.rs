//! The contents of events: types, statuses, parameters, and the failures that they report.

use portolan_addrinfo::AddrInfoError;
use portolan_provider::cm::{CmEvent, ConnParam, Ece, EventParam, EventType, UdParam};
use portolan_provider::error::errno;
use portolan_provider::{Cause, Error, Step};
use portolan_wire::cm::{RejectReason, SidrStatus};

use super::membership::Membership;

/// The contents of an event, without its id.
///
/// ```
/// use portolan::cm::{CmId, EventChannel, EventType};
/// # use portolan::Connector;
/// # use std::time::Duration;
///
/// # let patience = Duration::from_secs(10);
/// let channel = EventChannel::open()?;
/// let listener = CmId::new(&channel)?;
/// listener.bind("127.0.0.1:0".parse().unwrap())?;
/// listener.listen(8)?;
/// # let address = listener.addresses()?.local.and_then(|local| local.inet()).unwrap();
/// # let client = std::thread::spawn(move || {
/// #     Connector::new().private_data(*b"a pilot").connect_to(address)
/// # });
///
/// let event = channel.next_event_within(patience)?;
/// assert_eq!(event.event_type(), EventType::ConnectRequest);
/// assert!(event.private_data().starts_with(b"a pilot"));
/// let offered = event.conn().expect("a request has parameters").responder_resources;
/// println!("the client serves {offered} reads at a time");
/// let (child, data) = (event.id().clone(), event.data().clone());
/// drop(event); // acknowledges it; the contents stay
/// assert!(data.failure().is_none());
/// child.reject(b"come back at noon")?;
/// # assert!(client.join().unwrap().unwrap_err().is_refused());
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventData {
    pub(super) event: EventType,
    status: i32,
    pub(super) param: EventParam,
    pub(super) ece: Ece,
    pub(super) membership: Option<Membership>,
    pub(super) addrinfo_error: Option<AddrInfoError>,
    /// Of `Disconnected`: this side ended the connection.
    pub(super) ended_here: bool,
}

impl EventData {
    /// Type of the event.
    pub fn event_type(&self) -> EventType {
        self.event
    }

    /// 0, a negative errno, or the transport's positive reason (`rdma_get_cm_event(3)`, status).
    pub fn status(&self) -> i32 {
        self.status
    }

    /// Connection parameters, from this side's point of view.
    pub fn conn(&self) -> Option<&ConnParam> {
        match &self.param {
            EventParam::Conn(conn) => Some(conn),
            _ => None,
        }
    }

    /// Datagram parameters.
    pub fn ud(&self) -> Option<&UdParam> {
        match &self.param {
            EventParam::Ud(ud) => Some(ud),
            _ => None,
        }
    }

    /// Private data: the whole field of the message, zero-padded.
    pub fn private_data(&self) -> &[u8] {
        match &self.param {
            EventParam::Conn(conn) => &conn.private_data,
            EventParam::Ud(ud) => &ud.private_data,
            _ => &[],
        }
    }

    /// The argument of a user-written event ([`CmId::write_event`](super::CmId::write_event)).
    pub fn arg(&self) -> Option<u64> {
        match self.param {
            EventParam::Arg(arg) => Some(arg),
            _ => None,
        }
    }

    /// The membership of a multicast event.
    pub fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Why a name lookup failed (`AddrinfoError`), with the code of rdma_getaddrinfo(3).
    pub fn addrinfo_error(&self) -> Option<&AddrInfoError> {
        self.addrinfo_error.as_ref()
    }

    /// The peer's vendor options.
    pub fn ece(&self) -> Ece {
        self.ece
    }

    /// The failure that the event reports; `None` for a success.
    ///
    /// Failures are `AddrError`, `RouteError`, `ConnectError`, `Unreachable`, `Rejected`, `MulticastError`,
    /// `AddrinfoError`, `DeviceRemoval` and `Disconnected`. The last is one even after the own
    /// [`CmId::disconnect`](super::CmId::disconnect), whose cause is `Closed`: a program that expects it compares the
    /// event's type first.
    pub fn failure(&self) -> Option<Error> {
        let (step, cause) = match self.event {
            EventType::AddrError => (Step::ResolveAddress, self.errno_cause()),
            EventType::RouteError => (Step::ResolveRoute, self.errno_cause()),
            EventType::Unreachable => (Step::Connect, self.unreachable_cause()),
            EventType::ConnectError => (Step::Connect, self.errno_cause()),
            EventType::Rejected => (Step::Connect, self.reject_cause()),
            EventType::Disconnected => (Step::Disconnect, self.end_cause()),
            EventType::DeviceRemoval => (
                Step::Transfer,
                Cause::NoDevice {
                    why: "it was removed".into(),
                },
            ),
            EventType::MulticastError => (Step::JoinMulticast, self.errno_cause()),
            EventType::AddrinfoError => {
                let known = self.addrinfo_error.clone().map(Cause::from);
                (
                    Step::ResolveName,
                    known.unwrap_or_else(|| self.errno_cause()),
                )
            }
            _ => return None,
        };
        Some(Error::new(step, cause))
    }

    pub(super) fn fail(&mut self, event: EventType, error: &Error) {
        self.event = event;
        self.status = -error.errno();
    }

    /// Why a request failed: the status of a SIDR REP, or a timeout.
    fn unreachable_cause(&self) -> Cause {
        match u8::try_from(self.status) {
            Ok(status) if status > 0 => Cause::SidrRefused(SidrStatus(status)),
            _ => self.errno_cause(),
        }
    }

    fn end_cause(&self) -> Cause {
        match -self.status {
            errno::ECONNRESET => Cause::PeerDied,
            _ if self.ended_here => Cause::Closed,
            _ => Cause::Disconnected,
        }
    }

    fn reject_cause(&self) -> Cause {
        // iWARP's rejections have no reason, but are the program's; the kernel reports an errno.
        let reason = u16::try_from(self.status).map(RejectReason);
        let reason = reason.unwrap_or(RejectReason::CONSUMER_DEFINED);
        Cause::Rejected {
            reason,
            private_data: self.private_data().into(),
        }
    }

    /// The cause for a negative errno; the kernel's own numbers keep their names.
    fn errno_cause(&self) -> Cause {
        use portolan_provider::error::errno::*;
        match -self.status {
            ETIMEDOUT => Cause::TimedOut {
                after_ms: 0,
                retries: 0,
            },
            EHOSTUNREACH => Cause::HostUnreachable,
            ENETUNREACH => Cause::NetworkUnreachable,
            EADDRNOTAVAIL => Cause::AddressNotAvailable,
            EADDRINUSE => Cause::AddressInUse { holder: None },
            ECONNABORTED => Cause::Displaced,
            ENODEV => Cause::NoDevice {
                why: "neither the address nor the route to it has one".into(),
            },
            errno => Cause::Os {
                call: "rdma_cm",
                errno,
            },
        }
    }
}

impl From<CmEvent> for EventData {
    fn from(raw: CmEvent) -> Self {
        Self {
            event: raw.event,
            status: raw.status,
            param: raw.param,
            ece: raw.ece,
            membership: None,
            addrinfo_error: None,
            ended_here: false,
        }
    }
}
