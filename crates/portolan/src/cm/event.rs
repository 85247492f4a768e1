//! Events of ids, with their data.

use std::ops::Deref;
use std::sync::Arc;

use portolan_addrinfo::AddrInfoError;
use portolan_provider::cm::{CmEvent, ConnParam, Ece, EventParam, EventType, UdParam};
use portolan_provider::error::errno;
use portolan_provider::{Cause, Error, Step};
use portolan_wire::cm::{RejectReason, SidrStatus};

use super::counts::Counts;
use super::id::{CmId, Finished};
use super::multicast::Membership;

/// A connection-manager event (`struct rdma_cm_event`). It owns its data and is acknowledged when
/// dropped.
///
/// Its type, status and parameters are in its [`EventData`].
#[derive(Debug)]
pub struct Event {
    id: CmId,
    listener: Option<CmId>,
    data: EventData,
    /// The counts at which it is acknowledged.
    counts: Arc<Counts>,
}

/// The contents of an event, without its id.
#[derive(Clone, Debug)]
pub struct EventData {
    event: EventType,
    status: i32,
    param: EventParam,
    ece: Ece,
    membership: Option<Membership>,
    addrinfo_error: Option<AddrInfoError>,
}

impl Event {
    /// Wraps an event of an existing id after the library's part of the work. Returns `None` if the
    /// event is internal.
    pub(super) fn arrived(id: CmId, raw: CmEvent) -> Option<Self> {
        let mut data = EventData::from(raw);
        match data.event {
            EventType::ConnectResponse => {
                id.note_remote_ece(data.ece);
                if id.has_queue_pair() {
                    // If the id has a queue pair, the library completes the handshake itself.
                    match id.finish_connect(&data.param) {
                        Finished::Established => data.event = EventType::Established,
                        Finished::Failed(error) => data.fail(EventType::ConnectError, &error),
                        // The next event reports what the peer did meanwhile.
                        Finished::Overtaken => return None,
                    }
                }
            }
            // The end of a handshake that failed on this side, which the user already knows.
            EventType::Rejected | EventType::Disconnected if id.has_failed_to_connect() => {
                return None;
            }
            EventType::Rejected => id.fail_queue_pair(),
            EventType::AddrinfoResolved | EventType::AddrinfoError => {
                // The argument is the library's own lookup number.
                let number = data.arg()?;
                data.param = EventParam::None;
                data.addrinfo_error = id.take_lookup(number)?.err();
            }
            _ => {}
        }
        let counts = id.counts().clone();
        Some(Self::counted(id, None, data, counts))
    }

    /// Wraps a connection request. `id` is the new connection's; the event is acknowledged on the
    /// listener.
    pub(super) fn request(id: CmId, listener: CmId, raw: CmEvent) -> Self {
        let data = EventData::from(raw);
        id.note_request(&data);
        let counts = listener.counts().clone();
        Self::counted(id, Some(listener), data, counts)
    }

    /// Wraps an event of a multicast membership, on which it is acknowledged.
    pub(super) fn of_group(id: CmId, membership: Membership, raw: CmEvent) -> Self {
        let mut data = EventData::from(raw);
        if data.event == EventType::MulticastJoin
            && let Err(error) = membership.attach(&id)
        {
            data.fail(EventType::MulticastError, &error);
        }
        let counts = membership.counts().clone();
        data.membership = Some(membership);
        Self::counted(id, None, data, counts)
    }

    fn counted(id: CmId, listener: Option<CmId>, data: EventData, counts: Arc<Counts>) -> Self {
        counts.note_reported();
        Self {
            id,
            listener,
            data,
            counts,
        }
    }

    /// The event's id; for a connection request, the new one.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// For a connection request, the listener.
    pub fn listener(&self) -> Option<&CmId> {
        self.listener.as_ref()
    }

    /// The contents, which may be kept after the event is acknowledged.
    pub fn data(&self) -> &EventData {
        &self.data
    }

    /// The failure that the event reports, with the id's addresses; `None` for a success.
    pub fn failure(&self) -> Option<Error> {
        let error = self.data.failure()?;
        Some(match self.id.addresses() {
            Ok(known) => error.between(known.local, known.remote),
            Err(_) => error,
        })
    }
}

impl Deref for Event {
    type Target = EventData;

    fn deref(&self) -> &EventData {
        &self.data
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.counts.note_acknowledged();
    }
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

    /// The argument of a user-written event ([`CmId::write_event`]).
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
    pub fn failure(&self) -> Option<Error> {
        let (step, cause) = match self.event {
            EventType::AddrError => (Step::ResolveAddress, self.errno_cause()),
            EventType::RouteError => (Step::ResolveRoute, self.errno_cause()),
            EventType::Unreachable => (Step::Connect, self.unreachable_cause()),
            EventType::ConnectError => (Step::Connect, self.errno_cause()),
            EventType::Rejected => (Step::Connect, self.reject_cause()),
            EventType::Disconnected => (Step::Transfer, self.end_cause()),
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

    fn fail(&mut self, event: EventType, error: &Error) {
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
            _ => Cause::Disconnected,
        }
    }

    fn reject_cause(&self) -> Cause {
        // iWARP's rejections have no reason, but are the program's; the kernel reports an errno.
        let reason = u16::try_from(self.status).map(RejectReason);
        let reason = reason.unwrap_or(RejectReason::CONSUMER_DEFINED);
        Cause::Rejected {
            reason,
            private_data: self.private_data().to_vec(),
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
        }
    }
}
