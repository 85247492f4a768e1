//! The states of an id, and every legal change between them as one table.
//!
//! Linux has two state machines: `rdma_cm` (`enum rdma_cm_state`) for the id and `ib_cm` (`enum ib_cm_state`) for its
//! connection. Here they are one, because every id state with a connection corresponds to one connection state. The
//! engine changes state only through [`transition`].

use portolan_provider::error::{Cause, Error, Result, Step};

portolan_provider::enum_table! {
    /// The state of an id.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum State {
        /// Created, without an address.
        Idle => "idle",
        /// Has a local address (`RDMA_CM_ADDR_BOUND`).
        AddrBound => "bound",
        /// Accepts connection requests (`RDMA_CM_LISTEN`).
        Listen => "listening",
        /// Waits for the answer to [`Query::Address`](crate::Query::Address) (`RDMA_CM_ADDR_QUERY`).
        AddrQuery => "resolving its address",
        /// The way to the destination is known (`RDMA_CM_ADDR_RESOLVED`).
        AddrResolved => "address resolved",
        /// Has a path (`RDMA_CM_ROUTE_RESOLVED`).
        RouteResolved => "route resolved",
        /// Active: REQ sent (`IB_CM_REQ_SENT`).
        ReqSent => "REQ sent",
        /// Active: the peer acknowledged the REQ by MRA and wants more time (`IB_CM_MRA_REQ_RCVD`).
        MraReqRcvd => "REQ acknowledged by MRA",
        /// Active: REP received, RTU not yet sent (`IB_CM_REP_RCVD` and `IB_CM_MRA_REP_SENT`). rdma_cm enters the
        /// latter at once without sending anything; a repeated REP is answered by MRA.
        RepRcvd => "REP received",
        /// Passive: REQ received, not yet answered (`IB_CM_REQ_RCVD` and `IB_CM_MRA_REQ_SENT`). A repeated REQ is
        /// answered by MRA.
        ReqRcvd => "REQ received",
        /// Passive: REP sent (`IB_CM_REP_SENT`).
        RepSent => "REP sent",
        /// Passive: the peer acknowledged the REP by MRA (`IB_CM_MRA_REP_RCVD`).
        MraRepRcvd => "REP acknowledged by MRA",
        /// Connected (`IB_CM_ESTABLISHED`).
        Established => "established",
        /// DREQ sent (`IB_CM_DREQ_SENT`).
        DreqSent => "DREQ sent",
        /// DREQ received, not yet answered (`IB_CM_DREQ_RCVD`).
        DreqRcvd => "DREQ received",
        /// Active, datagrams: SIDR REQ sent (`IB_CM_SIDR_REQ_SENT`).
        SidrReqSent => "SIDR REQ sent",
        /// Active, datagrams: the peer's queue pair is known. (Linux's ib_cm returns to idle; its rdma_cm is
        /// connected.)
        SidrResolved => "service resolved",
        /// Passive, datagrams: SIDR REQ received, not yet answered (`IB_CM_SIDR_REQ_RCVD`).
        SidrReqRcvd => "SIDR REQ received",
        /// Passive, datagrams: answered by SIDR REP, with success or not. (Linux's ib_cm returns to idle and treats a
        /// copy of the request as new.)
        SidrReplied => "SIDR REP sent",
        /// Closed; late packets may still arrive (`IB_CM_TIMEWAIT`).
        Timewait => "time-wait",
        /// Closed; nothing follows (`IB_CM_IDLE` of a used connection).
        Closed => "closed",
        /// The device was removed: the id can only be destroyed (`RDMA_CM_DEVICE_REMOVAL`).
        DeviceRemoval => "device removed",
    }
}

portolan_provider::enum_table! {
    /// Events of an id: commands of its owner, messages of its peer, and timeouts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Event {
        /// Command: bind to a local address.
        Bind,
        /// Command: join a multicast group.
        Join,
        /// Command: resolve a destination.
        ResolveAddr,
        /// The caller answered the address query.
        AddressFound,
        /// The caller could not answer the address query.
        AddressFailed,
        /// The address query timed out.
        AddressTimeout,
        /// Command: make a path to the resolved destination.
        ResolveRoute,
        /// Command: listen.
        Listen,
        /// Command: connect.
        Connect,
        /// Command: connect, of an id for datagrams: send a SIDR REQ.
        ConnectDatagram,
        /// Command: accept the request.
        Accept,
        /// Command: complete the active side by hand (RTU).
        Establish,
        /// Command: reject.
        Reject,
        /// Command: disconnect.
        Disconnect,
        /// Command: the queue pair received data before the RTU.
        NotifyEstablished,
        /// Command: destroy the id.
        Destroy,
        /// A new REQ. On a listener it creates a child; the child itself leaves [`State::Idle`].
        ReqReceived,
        /// A copy of the REQ that created this id.
        ReqRepeated,
        /// The first REP.
        RepReceived,
        /// REP from a queue pair that belongs to another of our connections.
        RepStale,
        /// A copy of the REP.
        RepRepeated,
        /// RTU.
        RtuReceived,
        /// MRA for the message that awaits an answer.
        MraReceived,
        /// REJ with any reason but "stale connection".
        RejReceived,
        /// REJ with the reason "stale connection" (10).
        RejStaleReceived,
        /// DREQ.
        DreqReceived,
        /// DREP.
        DrepReceived,
        /// A REQ or REP showed that the peer has forgotten this connection.
        FoundStale,
        /// A new SIDR REQ. On a listener it creates a child; the child itself leaves [`State::Idle`].
        SidrReqReceived,
        /// A copy of the SIDR REQ that created this id.
        SidrReqRepeated,
        /// SIDR REP with a queue pair.
        SidrRepReceived,
        /// SIDR REP without one.
        SidrRepRefused,
        /// A new connection displaces this half-open one.
        Displaced,
        /// The last retransmission got no answer.
        Unanswered,
        /// Time-wait ended.
        TimewaitOver,
        /// The device that it is bound to was removed.
        DeviceRemoved,
        /// The hardware address of the device that it is bound to changed.
        HardwareAddressChanged,
        /// The hardware address of the next hop to its peer changed.
        NeighbourChanged,
    }
}

/// The result of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// This state, which may be the current one.
    To(State),
    /// The id ceases to exist.
    Gone,
}

/// The authority for a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A function of Linux's `drivers/infiniband/core/cma.c`.
    Cma(&'static str),
    /// A function of Linux's `drivers/infiniband/core/cm.c`.
    IbCm(&'static str),
    /// A chapter of the InfiniBand Architecture Specification, volume 1, if Linux differs.
    Ibta(&'static str),
}

/// The result of `event` in `state`, and its source; `None` if it is not legal. Then a command is refused or a message
/// dropped, and the state does not change.
pub const fn transition(state: State, event: Event) -> Option<(Next, Source)> {
    use Event as E;
    use Source::{Cma, IbCm, Ibta};
    use State as S;
    let (next, source) = match (state, event) {
        // Addresses and routes.
        (S::Idle, E::Bind) => (S::AddrBound, Cma("rdma_bind_addr")),
        (S::Idle | S::AddrBound, E::ResolveAddr) => (S::AddrQuery, Cma("rdma_resolve_addr")),
        (S::AddrQuery, E::AddressFound) => (S::AddrResolved, Cma("addr_handler")),
        (S::AddrQuery, E::AddressFailed) => (S::AddrBound, Cma("addr_handler")),
        (S::AddrQuery, E::AddressTimeout) => (S::AddrBound, Cma("addr_handler")),
        (S::AddrResolved, E::ResolveRoute) => (S::RouteResolved, Cma("cma_resolve_iboe_route")),

        // Groups are independent of the connection's state, but cannot be joined once there is a route.
        (S::AddrBound | S::AddrResolved, E::Join) => (state, Cma("rdma_join_multicast")),

        // Listening.
        (S::AddrBound, E::Listen) => (S::Listen, Cma("rdma_listen")),
        (S::Listen, E::ReqReceived) => (S::Listen, IbCm("cm_req_handler")),

        // The active side.
        (S::RouteResolved, E::Connect) => (S::ReqSent, IbCm("ib_send_cm_req")),
        (S::ReqSent | S::MraReqRcvd, E::MraReceived) => (S::MraReqRcvd, IbCm("cm_mra_handler")),
        (S::ReqSent | S::MraReqRcvd, E::RepReceived) => (S::RepRcvd, IbCm("cm_rep_handler")),
        (S::ReqSent | S::MraReqRcvd, E::RepStale) => (state, IbCm("cm_rep_handler")),
        (S::ReqSent | S::MraReqRcvd, E::Unanswered) => (S::Closed, IbCm("cm_process_send_error")),
        (S::RepRcvd, E::RepRepeated) => (S::RepRcvd, IbCm("cm_dup_rep_handler")),
        (S::RepRcvd, E::Establish) => (S::Established, IbCm("ib_send_cm_rtu")),

        // The passive side.
        (S::Idle, E::ReqReceived) => (S::ReqRcvd, IbCm("cm_req_handler")),
        (S::ReqRcvd, E::ReqRepeated) => (S::ReqRcvd, IbCm("cm_dup_req_handler")),
        (S::ReqRcvd, E::Accept) => (S::RepSent, IbCm("ib_send_cm_rep")),
        (S::RepSent | S::MraRepRcvd, E::ReqRepeated) => (state, Ibta("12.9")),
        (S::RepSent | S::MraRepRcvd, E::MraReceived) => (S::MraRepRcvd, IbCm("cm_mra_handler")),
        (S::RepSent | S::MraRepRcvd, E::RtuReceived) => (S::Established, IbCm("cm_rtu_handler")),
        (S::RepSent | S::MraRepRcvd, E::NotifyEstablished) => {
            (S::Established, IbCm("cm_establish"))
        }
        (S::RepSent | S::MraRepRcvd, E::Unanswered) => (S::Closed, IbCm("cm_process_send_error")),

        // Same result as if the peer had stopped answering.
        (S::ReqRcvd | S::RepSent | S::MraRepRcvd, E::Displaced) => {
            (S::Closed, IbCm("cm_process_send_error"))
        }

        // Connected.
        (S::Established, E::RepRepeated) => (S::Established, IbCm("cm_dup_rep_handler")),
        (S::Established, E::NotifyEstablished) => (S::Established, Cma("rdma_notify")),

        // Datagrams: service id resolution. No connection follows.
        (S::RouteResolved, E::ConnectDatagram) => (S::SidrReqSent, IbCm("ib_send_cm_sidr_req")),
        (S::SidrReqSent, E::SidrRepReceived) => (S::SidrResolved, IbCm("cm_sidr_rep_handler")),
        (S::SidrReqSent, E::SidrRepRefused) => (S::Closed, IbCm("cm_sidr_rep_handler")),
        (S::SidrReqSent, E::Unanswered) => (S::Closed, IbCm("cm_process_send_error")),
        (S::Listen, E::SidrReqReceived) => (S::Listen, IbCm("cm_sidr_req_handler")),
        (S::Idle, E::SidrReqReceived) => (S::SidrReqRcvd, IbCm("cm_sidr_req_handler")),
        (S::SidrReqRcvd, E::SidrReqRepeated) => (S::SidrReqRcvd, IbCm("cm_sidr_req_handler")),
        (S::SidrReqRcvd, E::Displaced) => (S::Closed, IbCm("cm_process_send_error")),
        (S::SidrReqRcvd, E::Accept | E::Reject) => (S::SidrReplied, IbCm("ib_send_cm_sidr_rep")),
        (S::SidrReplied, E::SidrReqRepeated) => (S::SidrReplied, Ibta("12.11")),

        // Rejections, sent and received.
        (S::ReqSent | S::MraReqRcvd | S::ReqRcvd | S::RepRcvd, E::Reject) => {
            (S::Closed, IbCm("ib_send_cm_rej"))
        }
        (S::RepSent | S::MraRepRcvd, E::Reject) => (S::Timewait, IbCm("ib_send_cm_rej")),
        (S::ReqSent | S::MraReqRcvd | S::RepSent | S::MraRepRcvd | S::ReqRcvd, E::RejReceived) => {
            (S::Closed, IbCm("cm_rej_handler"))
        }
        (
            S::ReqSent | S::MraReqRcvd | S::RepSent | S::MraRepRcvd | S::ReqRcvd,
            E::RejStaleReceived,
        ) => (S::Timewait, IbCm("cm_rej_handler")),
        (S::DreqSent | S::RepRcvd | S::Established, E::RejReceived | E::RejStaleReceived) => {
            (S::Timewait, IbCm("cm_rej_handler"))
        }

        // The end.
        (S::Established, E::Disconnect) => (S::DreqSent, IbCm("ib_send_cm_dreq")),
        (S::Established, E::FoundStale) => (S::DreqSent, IbCm("cm_match_req")),
        (S::RepSent | S::MraRepRcvd | S::Established, E::DreqReceived) => {
            (S::DreqRcvd, IbCm("cm_dreq_handler"))
        }
        (S::DreqRcvd, E::Disconnect) => (S::Timewait, IbCm("ib_send_cm_drep")),
        // Both sides disconnected at once. Linux waits for a second rdma_disconnect here. The standard answers by DREP,
        // so the state cannot hang.
        (S::DreqSent, E::DreqReceived) => (S::Timewait, Ibta("12.9")),
        (S::DreqSent | S::DreqRcvd, E::DrepReceived) => (S::Timewait, IbCm("cm_drep_handler")),
        (S::DreqSent, E::Unanswered) => (S::Timewait, IbCm("cm_process_send_error")),
        (S::DreqRcvd, E::DreqReceived) => (S::DreqRcvd, IbCm("cm_dreq_handler")),
        (S::Timewait, E::DreqReceived) => (S::Timewait, IbCm("cm_dreq_handler")),
        // Refused or given up here, but the peer considers it connected.
        (S::Closed, E::DreqReceived) => (S::Closed, Ibta("12.9")),
        (S::Timewait, E::ReqRepeated) => (S::Timewait, IbCm("cm_dup_req_handler")),
        (S::Timewait, E::TimewaitOver) => (S::Closed, IbCm("cm_timewait_handler")),
        // If there is nothing to disconnect, rdma_disconnect succeeds without effect.
        (
            S::ReqSent
            | S::MraReqRcvd
            | S::RepRcvd
            | S::ReqRcvd
            | S::RepSent
            | S::MraRepRcvd
            | S::DreqSent
            | S::SidrReqSent
            | S::SidrResolved
            | S::SidrReqRcvd
            | S::SidrReplied
            | S::Timewait
            | S::Closed,
            E::Disconnect,
        ) => (state, Cma("rdma_disconnect")),

        // Events of the device and the link. Closed connections, and connections that the peer started, get no events
        // about the way to the peer.
        (S::DeviceRemoval | S::Idle, E::DeviceRemoved | E::HardwareAddressChanged) => return None,
        (_, E::DeviceRemoved) => (S::DeviceRemoval, Cma("cma_send_device_removal_put")),
        (_, E::HardwareAddressChanged) => (state, Cma("cma_netdev_change")),
        (
            S::RouteResolved
            | S::ReqSent
            | S::MraReqRcvd
            | S::RepRcvd
            | S::Established
            | S::DreqSent
            | S::DreqRcvd
            | S::SidrReqSent
            | S::SidrResolved,
            E::NeighbourChanged,
        ) => (state, Cma("cma_netevent_callback")),
        (_, E::Destroy) => return Some((Next::Gone, Cma("rdma_destroy_id"))),
        _ => return None,
    };
    Some((Next::To(next), source))
}

impl State {
    /// Whether a child is half-open: its peer sent a request and has not confirmed the reply.
    pub(crate) const fn is_half_open(self) -> bool {
        matches!(
            self,
            Self::ReqRcvd | Self::RepSent | Self::MraRepRcvd | Self::SidrReqRcvd
        )
    }

    /// The state after the command `event`.
    ///
    /// # Errors
    /// `InvalidState` with the states that allow the command; `DeviceRemoved`.
    pub(crate) fn command(self, event: Event, step: Step) -> Result<Self> {
        match transition(self, event) {
            Some((Next::To(next), _)) => Ok(next),
            Some((Next::Gone, _)) => Ok(self),
            None if self == Self::DeviceRemoval => Err(Error::new(step, Cause::DeviceRemoved)),
            None => Err(Error::new(
                step,
                Cause::InvalidState {
                    expected: event.legal_in(),
                    found: self.name(),
                },
            )),
        }
    }

    /// The state after `event`, if it is legal here.
    pub(crate) const fn after(self, event: Event) -> Option<Self> {
        match transition(self, event) {
            Some((Next::To(next), _)) => Some(next),
            _ => None,
        }
    }
}

impl Event {
    /// The states in which a command is legal, in words, for its error.
    pub const fn legal_in(self) -> &'static str {
        match self {
            Self::Bind => "idle",
            Self::Join => "bound or address resolved",
            Self::ResolveAddr => "idle or bound",
            Self::AddressFound | Self::AddressFailed => "resolving its address",
            Self::ResolveRoute => "address resolved",
            Self::Listen => "bound",
            Self::Connect | Self::ConnectDatagram => "route resolved",
            Self::Accept => "REQ received or SIDR REQ received",
            Self::Establish => "REP received",
            Self::Reject => {
                "REQ sent, REQ acknowledged by MRA, REP received, REQ received, REP sent, \
                 REP acknowledged by MRA or SIDR REQ received"
            }
            Self::Disconnect => "connecting, established or later",
            Self::NotifyEstablished => "REP sent, REP acknowledged by MRA or established",
            _ => "any",
        }
    }
}
