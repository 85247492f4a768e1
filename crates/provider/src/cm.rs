//! Connection-manager parameters and events: arguments of the rdma_cm's commands and the contents
//! of its events (`include/uapi/rdma/rdma_user_cm.h`, rdma_get_cm_event(3)).

use alloc::boxed::Box;
use core::fmt;

use portolan_wire::addr::{Gid, PKey, PortSpace, QKey, Qpn};
pub use portolan_wire::cm::Ece;

use crate::address::Address;
use crate::error::{Error, Result, Step};
use crate::verbs::AhAttr;

/// A provider's number for a connection-manager id (`struct rdma_ucm_cmd_hdr`'s `id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdNumber(pub u32);

impl fmt::Display for IdNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {}", self.0)
    }
}

/// The owner's tag of an id, returned with its events (`uid` of the kernel's ABI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u64);

/// The type of service that an id uses: its port space and queue pair type. The default of
/// `rdma_create_id(3)` for connections is [`PortSpace::Tcp`] with [`Rc`](crate::verbs::QpType::Rc), and for datagrams
/// [`PortSpace::Udp`] with [`Ud`](crate::verbs::QpType::Ud).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// Port space.
    pub port_space: PortSpace,
    /// Queue pair type.
    pub qp_type: crate::verbs::QpType,
}

/// Connection parameters: `struct rdma_conn_param`.
///
/// The default has zero everywhere, as in C: no reads or atomics, and no retries.
///
/// In events, `responder_resources` and `initiator_depth` are from the receiver's point of view:
/// the peer's initiator depth is this side's responder resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// Private data; in events the whole field of the message, zero-padded.
    pub private_data: Box<[u8]>,
    /// Maximum number of concurrent RDMA reads and atomics that this side accepts. Default: 0, which refuses them.
    pub responder_resources: u8,
    /// Maximum number of concurrent RDMA reads and atomics that this side starts. Default: 0.
    pub initiator_depth: u8,
    /// Whether hardware flow control is offered. Default: `false`.
    pub flow_control: bool,
    /// Number of retries of a send without an answer (0 to 7). Default: 0, so that one lost packet ends the connection.
    pub retry_count: u8,
    /// Number of retries after "receiver not ready" (0 to 7; 7 means forever). Default: 0.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
    /// Queue pair number: this side's in commands, the peer's in events.
    pub qp_num: Qpn,
}

/// Datagram parameters: `struct rdma_ud_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// Private data; in events the whole field of the message, zero-padded.
    pub private_data: Box<[u8]>,
    /// Address vector of the peer or group.
    pub ah_attr: AhAttr,
    /// Queue pair number of the peer or group.
    pub qp_num: Qpn,
    /// Q_Key to send with.
    pub qkey: QKey,
}

/// An event's data beyond its type and status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EventParam {
    /// Nothing.
    #[default]
    None,
    /// Parameters of a connection.
    Conn(ConnParam),
    /// Parameters of a datagram service or multicast group.
    Ud(UdParam),
    /// The argument of a user-written event.
    Arg(u64),
}

crate::enum_table! {
    /// Event types with the numbers of `enum rdma_cm_event_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u32)]
    #[non_exhaustive]
    #[allow(
        missing_docs,
        reason = "each is described in rdma_get_cm_event(3) under its name"
    )]
    pub enum EventType {
        AddrResolved = 0 => "RDMA_CM_EVENT_ADDR_RESOLVED",
        AddrError = 1 => "RDMA_CM_EVENT_ADDR_ERROR",
        RouteResolved = 2 => "RDMA_CM_EVENT_ROUTE_RESOLVED",
        RouteError = 3 => "RDMA_CM_EVENT_ROUTE_ERROR",
        ConnectRequest = 4 => "RDMA_CM_EVENT_CONNECT_REQUEST",
        ConnectResponse = 5 => "RDMA_CM_EVENT_CONNECT_RESPONSE",
        ConnectError = 6 => "RDMA_CM_EVENT_CONNECT_ERROR",
        Unreachable = 7 => "RDMA_CM_EVENT_UNREACHABLE",
        Rejected = 8 => "RDMA_CM_EVENT_REJECTED",
        Established = 9 => "RDMA_CM_EVENT_ESTABLISHED",
        Disconnected = 10 => "RDMA_CM_EVENT_DISCONNECTED",
        DeviceRemoval = 11 => "RDMA_CM_EVENT_DEVICE_REMOVAL",
        MulticastJoin = 12 => "RDMA_CM_EVENT_MULTICAST_JOIN",
        MulticastError = 13 => "RDMA_CM_EVENT_MULTICAST_ERROR",
        AddrChange = 14 => "RDMA_CM_EVENT_ADDR_CHANGE",
        TimewaitExit = 15 => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        AddrinfoResolved = 16 => "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        AddrinfoError = 17 => "RDMA_CM_EVENT_ADDRINFO_ERROR",
        User = 18 => "RDMA_CM_EVENT_USER",
    }
}

impl EventType {
    /// The type with this number; `None` for a number that only newer kernels use.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// An event from a provider (`struct rdma_ucm_event_resp`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// The owner's tag of the id; for `ConnectRequest`, the listener's.
    pub uid: UserId,
    /// The id; for `ConnectRequest`, the new child's.
    pub id: IdNumber,
    /// Type.
    pub event: EventType,
    /// 0, a negative errno, or a positive transport reason, depending on the type.
    pub status: i32,
    /// Parameters.
    pub param: EventParam,
    /// The peer's vendor options.
    pub ece: Ece,
}

/// The result of an address query (`RDMA_USER_CM_QUERY_ADDR` and `_GID` combined).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdAddresses {
    /// Local address, once bound.
    pub local: Option<Address>,
    /// Remote address, once resolved.
    pub remote: Option<Address>,
    /// Number of the RDMA device (`Device::index`), once bound to one.
    pub device_index: Option<u32>,
    /// Port of that device, from 1; 0 while unbound.
    pub port_num: u8,
    /// Source GID.
    pub sgid: Option<Gid>,
    /// Destination GID.
    pub dgid: Option<Gid>,
    /// Partition key.
    pub pkey: PKey,
}

/// A path to a destination (IBTA PathRecord, the fields that connections use; host order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Destination GID.
    pub dgid: Gid,
    /// Source GID.
    pub sgid: Gid,
    /// Destination LID; 0 on Ethernet.
    pub dlid: u16,
    /// Source LID; 0 on Ethernet.
    pub slid: u16,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Service level.
    pub sl: u8,
    /// Path MTU.
    pub mtu: crate::verbs::Mtu,
    /// Static rate, IBTA encoding.
    pub rate: u8,
    /// Packet lifetime exponent: 4.096 µs × 2^n.
    pub packet_lifetime: u8,
}

impl PathRecord {
    /// The fields of a subnet administrator's record.
    ///
    /// # Errors
    /// `InvalidArgument` in `step` for an invalid MTU.
    pub fn of_record(step: Step, record: &portolan_wire::sa::PathRecord) -> Result<Self> {
        let mtu = record.mtu.value;
        Ok(Self {
            dgid: record.dgid,
            sgid: record.sgid,
            dlid: record.dlid,
            slid: record.slid,
            flow_label: record.flow_label,
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
            pkey: record.pkey,
            sl: record.sl,
            mtu: crate::verbs::Mtu::from_number(mtu)
                .ok_or_else(|| Error::invalid(step, "path MTU", "1 to 5", mtu))?,
            rate: record.rate.value,
            packet_lifetime: record.packet_lifetime.value,
        })
    }
}

/// The record in the format of management datagrams, reversible, with exact selectors.
impl From<&PathRecord> for portolan_wire::sa::PathRecord {
    fn from(path: &PathRecord) -> Self {
        use portolan_wire::sa::Selected;
        Self {
            dgid: path.dgid,
            sgid: path.sgid,
            dlid: path.dlid,
            slid: path.slid,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            reversible: true,
            pkey: path.pkey,
            sl: path.sl,
            mtu: Selected::exactly(path.mtu as u8),
            rate: Selected::exactly(path.rate),
            packet_lifetime: Selected::exactly(path.packet_lifetime),
            ..Self::default()
        }
    }
}

/// The type of a multicast membership, with the numbers of `RDMA_MC_JOIN_FLAG_*`
/// (rdma_join_multicast_ex(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum JoinKind {
    /// Sends and receives.
    FullMember = 0,
    /// Only sends; neither creates the group nor keeps it alive.
    SendOnlyFullMember = 1,
}

/// A provider's number for an id's membership of a multicast group. Not reused during the
/// provider's lifetime (the `id` that JOIN_MCAST of the kernel's ABI returns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MembershipNumber(pub u64);

/// Options of an id, `rdma_set_option(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdOption {
    /// Type of service (`RDMA_OPTION_ID_TOS`).
    Tos(u8),
    /// Allows binding an address that is already bound (`RDMA_OPTION_ID_REUSEADDR`).
    ReuseAddr(bool),
    /// Restricts a wildcard listener to its address family (`RDMA_OPTION_ID_AFONLY`).
    AfOnly(bool),
    /// Local ACK timeout exponent (`RDMA_OPTION_ID_ACK_TIMEOUT`).
    AckTimeout(u8),
}
