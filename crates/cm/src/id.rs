//! An id, and its connection, if any.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::net::SocketAddr;
use core::time::Duration;

use portolan_provider::cm::{IdNumber, PathRecord, Service, UserId};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::Mtu;
use portolan_provider::{Address, SockaddrIb};
use portolan_wire::cm::ReqRepr;
use portolan_wire::cma::CmaHeader;
use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Gid, PKey, Psn, QKey, Qpn, ServiceId};

use crate::config::{Config, time_of_exponent};
use crate::half_open_requests::Requests;
use crate::retry::Request;
use crate::sidr::{Asked, Inquiry};
use crate::state::{Event, State};
use crate::types::{
    BoundDevice, Host, IdOptions, Lids, MadPath, MembershipNumber, Neighbour, QueryNumber,
};

/// An id: `struct rdma_id_private` and `struct cm_id_private` together.
#[derive(Debug)]
pub(crate) struct Id {
    /// The owner's tag. A child has no tag, and no events, until it is accepted.
    pub(crate) uid: Option<UserId>,
    pub(crate) service: Service,
    pub(crate) state: State,
    pub(crate) options: IdOptions,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) device: Option<BoundDevice>,
    pub(crate) path: Option<PathRecord>,
    /// The LIDs of `path`, on an InfiniBand port.
    pub(crate) lids: Option<Lids>,
    /// The service id of an InfiniBand address: its own if it listens, otherwise the peer's. With it, the addresses of
    /// the id hold GIDs.
    pub(crate) ib_service: Option<ServiceId>,
    /// The next hop to the destination, once resolved.
    pub(crate) neighbour: Option<Neighbour>,
    /// Our first PSN: the peer starts with it and our receive queue expects it.
    pub(crate) starting_psn: Psn,
    pub(crate) query: QueryNumber,
    pub(crate) listener: Option<Listener>,
    /// The listener whose half-open limit this child counts against.
    pub(crate) half_open_at: Option<IdNumber>,
    pub(crate) connection: Option<Box<Connection>>,
    /// The active side of a datagram id: the SIDR request to the peer.
    pub(crate) inquiry: Option<Box<Inquiry>>,
    /// The passive side of a datagram id: the SIDR request that created it.
    pub(crate) asked: Option<Box<Asked>>,
    /// Its multicast groups.
    pub(crate) memberships: BTreeSet<MembershipNumber>,
    /// Q_Key of a datagram service, if it is not the usual one.
    pub(crate) qkey: Option<QKey>,
    /// The id's deadline, as stored in the timers.
    pub(crate) deadline: Option<Duration>,
}

/// The state of a listening id.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Maximum number of waiting requests.
    pub(crate) backlog: u32,
    /// Children whose request event was not taken. They are destroyed with the listener.
    pub(crate) waiting: Requests,
    /// Maximum number of half-open children.
    pub(crate) max_half_open: usize,
    /// Children without an RTU, including waiting ones.
    pub(crate) half_open: Requests,
}

/// The state of a connecting or connected id.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The listener whose backlog this child's request still counts against.
    pub(crate) waits_at: Option<IdNumber>,
    /// Whether the REQ came from the peer.
    pub(crate) passive: bool,
    /// Whether an MRA asked the peer to wait for the answer to its request.
    pub(crate) was_put_off: bool,
    pub(crate) mad_path: MadPath,
    pub(crate) local_comm_id: u32,
    /// The peer's communication id, once received.
    pub(crate) remote_comm_id: Option<u32>,
    pub(crate) remote_guid: u64,
    /// Transaction id of the handshake, chosen by the active side.
    pub(crate) tid: u64,
    /// Transaction of the peer's DREQ.
    pub(crate) dreq_tid: u64,
    pub(crate) local_qpn: Qpn,
    pub(crate) remote_qpn: Qpn,
    pub(crate) remote_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) mtu: Mtu,
    /// Exponent of the local ACK timeout, which is also the length of time-wait.
    pub(crate) ack_timeout_exp: u8,
    /// Exponent of the time in which the active side expects an answer to its request.
    pub(crate) request_response_exp: u8,
    /// How long to wait for an answer, and how often to repeat.
    pub(crate) response_timeout: Duration,
    pub(crate) max_retries: u8,
    /// The message that awaits an answer.
    pub(crate) request: Option<Request>,
    /// Whether `Disconnected` was reported. It is reported once, and `TimewaitExit` only follows it.
    pub(crate) disconnect_reported: bool,
}

impl Id {
    pub(crate) fn new(uid: Option<UserId>, service: Service, starting_psn: Psn) -> Self {
        Self {
            uid,
            service,
            state: State::Idle,
            options: IdOptions::default(),
            local: None,
            remote: None,
            device: None,
            path: None,
            lids: None,
            ib_service: None,
            neighbour: None,
            starting_psn,
            query: QueryNumber(0),
            listener: None,
            half_open_at: None,
            connection: None,
            inquiry: None,
            asked: None,
            memberships: BTreeSet::new(),
            qkey: None,
            deadline: None,
        }
    }

    /// The state after the command `event`.
    pub(crate) fn command(&self, event: Event, step: Step) -> Result<State> {
        self.state
            .command(event, step)
            .map_err(|error| self.locate(error))
    }

    /// The error `cause` with this id's addresses.
    pub(crate) fn fail(&self, step: Step, cause: Cause) -> Error {
        self.locate(Error::new(step, cause))
    }

    /// Adds the id's addresses to an error.
    pub(crate) fn locate(&self, error: Error) -> Error {
        error.between(self.local_address(), self.remote_address())
    }

    /// The local address in its own family.
    pub(crate) fn local_address(&self) -> Option<Address> {
        let service = self.ib_service.filter(|_| self.is_served());
        self.local.map(|local| self.address(local, service))
    }

    /// The remote address in its own family.
    pub(crate) fn remote_address(&self) -> Option<Address> {
        let service = self.ib_service.filter(|_| !self.is_served());
        self.remote.map(|remote| self.address(remote, service))
    }

    /// Whether the service id is its own rather than the peer's.
    fn is_served(&self) -> bool {
        let passive = |connection: &Connection| connection.passive;
        self.remote.is_none()
            || self.asked.is_some()
            || self.connection.as_deref().is_some_and(passive)
    }

    fn address(&self, kept: SocketAddr, service: Option<ServiceId>) -> Address {
        if self.ib_service.is_none() {
            return Address::Inet(kept);
        }
        Address::Ib(SockaddrIb {
            pkey: self.path.map_or(PKey::DEFAULT, |path| path.pkey),
            flowinfo: 0,
            gid: Gid::from(kept.ip()),
            sid: service.map_or(0, |service| service.0),
            sid_mask: service.map_or(0, |_| u64::MAX),
            scope_id: 0,
        })
    }

    /// The connection.
    ///
    /// # Errors
    /// `InvalidState` for an id that never had one.
    pub(crate) fn connection(&self, step: Step) -> Result<&Connection> {
        self.connection.as_deref().ok_or_else(|| {
            let expected = "connecting or connected";
            self.fail(
                step,
                Cause::InvalidState {
                    expected,
                    found: self.state.name(),
                },
            )
        })
    }

    /// Its communication id, once assigned. For SIDR this is the request id.
    pub(crate) fn comm_id(&self) -> Option<u32> {
        let connection = self.connection.as_deref();
        let inquiry = self.inquiry.as_deref();
        connection
            .map(|connection| connection.local_comm_id)
            .or_else(|| inquiry.map(|inquiry| inquiry.request_id))
    }

    /// The path to its peer, once known.
    pub(crate) fn mad_path(&self) -> Option<&MadPath> {
        let connection = self.connection.as_deref();
        let inquiry = self.inquiry.as_deref();
        connection
            .map(|connection| &connection.mad_path)
            .or_else(|| inquiry.map(|inquiry| &inquiry.mad_path))
    }

    /// The message that awaits an answer.
    pub(crate) fn request(&self) -> Option<&Request> {
        let connection = self.connection.as_deref();
        let inquiry = self.inquiry.as_deref();
        connection
            .and_then(|connection| connection.request.as_ref())
            .or_else(|| inquiry.and_then(|inquiry| inquiry.request.as_ref()))
    }

    /// The slot of the message that awaits an answer.
    pub(crate) fn request_mut(&mut self) -> Option<&mut Option<Request>> {
        match (&mut self.connection, &mut self.inquiry) {
            (Some(connection), _) => Some(&mut connection.request),
            (None, Some(inquiry)) => Some(&mut inquiry.request),
            (None, None) => None,
        }
    }

    /// How long to wait for an answer, and how often to repeat.
    pub(crate) fn patience(&self) -> Option<(Duration, u8)> {
        let connection = self.connection.as_deref();
        let inquiry = self.inquiry.as_deref();
        connection
            .map(|connection| (connection.response_timeout, connection.max_retries))
            .or_else(|| inquiry.map(|inquiry| (inquiry.response_timeout, inquiry.max_retries)))
    }

    /// The listener whose backlog this child's request counts against.
    pub(crate) fn waits_at(&self) -> Option<IdNumber> {
        let connection = self.connection.as_deref();
        let asked = self.asked.as_deref();
        connection
            .and_then(|connection| connection.waits_at)
            .or_else(|| asked.and_then(|asked| asked.waits_at))
    }

    /// Removes the child from its listener's backlog and returns that listener.
    pub(crate) fn leave_backlog(&mut self) -> Option<IdNumber> {
        let connection = self.connection.as_deref_mut();
        let asked = self.asked.as_deref_mut();
        connection
            .and_then(|connection| connection.waits_at.take())
            .or_else(|| asked.and_then(|asked| asked.waits_at.take()))
    }

    /// Bytes before the user's private data in a request: the IP addresses, if present.
    pub(crate) fn request_header_len(&self) -> usize {
        match self.ib_service {
            Some(_) => 0,
            None => CmaHeader::LEN,
        }
    }

    /// The service id of its port, or that of its InfiniBand address.
    pub(crate) fn service_id(&self, address: &SocketAddr) -> ServiceId {
        self.ib_service
            .unwrap_or_else(|| ServiceId::from_port(self.service.port_space, address.port()))
    }

    /// The answer to copies of the request that created this id, which `mad` rejects.
    pub(crate) fn rejection(&self, mad: [u8; MAD_LEN]) -> Option<Rejection> {
        let connection = self.connection.as_deref()?;
        Some(Rejection {
            path: connection.mad_path,
            tid: connection.tid,
            qpn: connection.remote_qpn,
            psn: connection.remote_psn,
            service_id: self.service_id(&self.local?),
            mad,
        })
    }
}

impl Connection {
    /// Whether a message on `path` can be from this connection's peer.
    pub(crate) fn is_on(&self, path: &MadPath) -> bool {
        self.mad_path.has_ends_of(path)
    }

    /// The key of the peer's connection, once a message carried it.
    pub(crate) fn remote_id(&self) -> Option<RemoteId> {
        let comm_id = self.remote_comm_id?;
        Some(RemoteId {
            guid: self.remote_guid,
            host: self.mad_path.host(),
            comm_id,
        })
    }

    /// For how long the active side may repeat its request. After an MRA, Linux waits for the granted time before each copy.
    pub(crate) fn repeating_time(&self, config: &Config) -> Duration {
        let granted = |exp: u8| time_of_exponent(exp.min(config.longest_grant_exp));
        let mut interval = granted(self.ack_timeout_exp) + granted(self.request_response_exp);
        if self.was_put_off {
            interval += time_of_exponent(config.mra_timeout_exp);
        }
        interval * (u32::from(self.max_retries) + 1)
    }

    /// The key of the peer's queue pair.
    pub(crate) fn remote_qp(&self) -> RemoteQp {
        RemoteQp {
            guid: self.remote_guid,
            host: self.mad_path.host(),
            qpn: self.remote_qpn,
        }
    }
}

/// Key of a peer's connection. Unlike in Linux it includes the address, so that no other host can end a connection by a
/// REQ that claims another host's GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemoteId {
    pub(crate) guid: u64,
    pub(crate) host: Host,
    pub(crate) comm_id: u32,
}

/// A queue pair of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemoteQp {
    pub(crate) guid: u64,
    pub(crate) host: Host,
    pub(crate) qpn: Qpn,
}

/// The answer to copies of a rejected REQ.
#[derive(Debug)]
pub(crate) struct Rejection {
    path: MadPath,
    tid: u64,
    qpn: Qpn,
    psn: Psn,
    service_id: ServiceId,
    /// The REJ.
    pub(crate) mad: [u8; MAD_LEN],
}

impl Rejection {
    /// Whether a REQ, whose sender's communication id is that of the rejected one, is a copy of it. Otherwise the sender
    /// restarted, or tries the same id and queue pair elsewhere: Linux's SRP initiator does so when it is redirected.
    pub(crate) fn answers(&self, path: &MadPath, tid: u64, req: &ReqRepr) -> bool {
        let kept = (self.tid, self.qpn, self.psn, self.service_id);
        let received = (tid, req.local_qpn, req.starting_psn, req.service_id);
        kept == received && self.path.has_ends_of(path)
    }
}
