//! Queue pairs: types, states, attributes.

use bitflags::bitflags;
use portolan_wire::addr::{Gid, Psn, QKey, Qpn};

use super::Access;

crate::enum_table! {
    /// Queue pair types (`enum ibv_qp_type`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum QpType {
        /// Reliable connected.
        #[default]
        Rc = 2 => "RC",
        /// Unreliable connected.
        Uc = 3 => "UC",
        /// Unreliable datagram.
        Ud = 4 => "UD",
        /// Extended reliable connected, sending end. It has no receives (`IBV_QPT_XRC_SEND`).
        XrcSend = 9 => "XRC_SEND",
        /// Extended reliable connected, receiving end. It uses the shared receive queues of its domain and sends nothing
        /// (`IBV_QPT_XRC_RECV`).
        XrcRecv = 10 => "XRC_RECV",
    }
}

impl QpType {
    /// The type with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|each| *each as u8 == number)
    }

    /// Whether it is an end of an extended reliable connection.
    #[inline]
    pub fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

crate::enum_table! {
    /// Queue pair states (`enum ibv_qp_state`), with the IBTA's names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u32)]
    pub enum QpState {
        /// Initial state: nothing is configured.
        #[default]
        Reset = 0 => "RESET",
        /// Receives may be posted.
        Init = 1 => "INIT",
        /// Ready to receive.
        Rtr = 2 => "RTR",
        /// Ready to send.
        Rts = 3 => "RTS",
        /// Send queue draining.
        Sqd = 4 => "SQD",
        /// Send queue in error.
        Sqe = 5 => "SQE",
        /// In error: work is flushed.
        Err = 6 => "ERR",
    }
}

crate::enum_table! {
    /// Path MTU (`enum ibv_mtu`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    #[allow(missing_docs, reason = "each is the number of bytes in its name")]
    pub enum Mtu {
        Mtu256 = 1,
        Mtu512 = 2,
        Mtu1024 = 3,
        Mtu2048 = 4,
        Mtu4096 = 5,
    }
}

impl Mtu {
    /// Payload bytes of a full packet.
    #[inline]
    pub fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The MTU with this IBTA number (1 to 5).
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == number)
    }

    /// The largest path MTU for an interface's MTU. Computed as Linux does (`iboe_get_mtu`):
    /// subtracts 96 bytes for IP, UDP and RoCEv2 headers and rounds down; 1500 gives 1024.
    pub fn for_interface(interface_mtu: u32) -> Option<Self> {
        let room = interface_mtu.checked_sub(96)? as usize;
        Self::ALL.into_iter().rfind(|mtu| mtu.bytes() <= room)
    }
}

/// Sizes of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Work requests in the receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of scatter/gather elements per send.
    pub max_send_sge: u32,
    /// Maximum number of scatter/gather elements per receive.
    pub max_recv_sge: u32,
    /// Maximum inline data per send, in bytes.
    pub max_inline_data: u32,
}

/// The address vector of a destination (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhAttr {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Local port, from 1.
    pub port_num: u8,
    /// The route within an InfiniBand subnet; `None` on Ethernet, where the global route leads to every destination.
    pub local_route: Option<LocalRoute>,
}

/// The route to a destination, or to a router, within an InfiniBand subnet (the rest of `struct ibv_ah_attr`; IBTA 7.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRoute {
    /// LID of the destination or of the router; a multicast LID for a group.
    pub dlid: u16,
    /// Low bits of the source LID, if the port has several.
    pub src_path_bits: u8,
    /// Static rate, IBTA encoding; 0 for the port's own.
    pub static_rate: u8,
    /// Whether packets have a global route header, from the other fields of the address vector.
    pub has_grh: bool,
}

impl LocalRoute {
    /// The route of an address vector with these fields: `None` with a global route but no LID, as on Ethernet.
    pub fn of_fields(
        dlid: u16,
        src_path_bits: u8,
        static_rate: u8,
        is_global: bool,
    ) -> Option<Self> {
        (dlid != 0 || !is_global).then_some(Self {
            dlid,
            src_path_bits,
            static_rate,
            has_grh: is_global,
        })
    }
}

bitflags! {
    /// The attributes that a modify sets (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// Next state.
        const STATE = 1;
        /// Request an event when the send queue is drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Peers' rights.
        const ACCESS_FLAGS = 1 << 3;
        /// Index in the P_Key table.
        const PKEY_INDEX = 1 << 4;
        /// Local port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retries.
        const RETRY_CNT = 1 << 10;
        /// Receiver-not-ready retries.
        const RNR_RETRY = 1 << 11;
        /// First expected PSN.
        const RQ_PSN = 1 << 12;
        /// Outstanding reads and atomics as initiator.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Receiver-not-ready timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First sent PSN.
        const SQ_PSN = 1 << 16;
        /// Outstanding reads and atomics as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

/// Attributes of a queue pair (`struct ibv_qp_attr`); a modify uses those in its mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Q_Key (UD).
    pub qkey: QKey,
    /// First expected PSN.
    pub rq_psn: Psn,
    /// First sent PSN.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Peers' rights on memory through this queue pair.
    pub access: Access,
    /// Address vector.
    pub ah_attr: AhAttr,
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Outstanding reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Receiver-not-ready timer code (5 bits).
    pub min_rnr_timer: u8,
    /// Local port.
    pub port_num: u8,
    /// Local ACK timeout: 4.096 µs × 2^n; 0 means no timeout.
    pub timeout: u8,
    /// Retries (3 bits).
    pub retry_cnt: u8,
    /// Receiver-not-ready retries (3 bits; 7 means forever).
    pub rnr_retry: u8,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            path_mtu: Mtu::Mtu1024,
            qkey: QKey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            access: Access::empty(),
            ah_attr: AhAttr {
                dgid: Gid::default(),
                sgid_index: 0,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
                sl: 0,
                port_num: 1,
                local_route: None,
            },
            pkey_index: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 1,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}

/// Attributes of a new queue pair (`struct ibv_qp_init_attr`, without the queues' handles).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Type.
    pub qp_type: QpType,
    /// Sizes; the provider may round up.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub sq_sig_all: bool,
}

/// Attributes of a shared receive queue, to create and to query (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Capacity in work requests; the provider may round up.
    pub max_wr: u32,
    /// Maximum number of scatter/gather elements per receive.
    pub max_sge: u32,
    /// Raise one event when fewer work requests than this remain; 0 means never.
    pub srq_limit: u32,
}
