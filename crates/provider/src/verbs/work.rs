//! Work requests and completions.

use core::any::Any;
use core::fmt;

use bitflags::bitflags;
use portolan_wire::addr::{QKey, Qpn};

use super::{AhAttr, MwBind};

bitflags! {
    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1;
        /// Give a completion.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 1 << 2;
    }
}

/// A piece of registered memory (`struct ibv_sge`, and laid out as it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First byte, as a virtual address of this process.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// What a send work request does (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// Send to a receive of the peer.
    Send,
    /// Send with 32 bits of immediate data, network order as the wire has it.
    SendWithImm(u32),
    /// Write to the peer's memory.
    RdmaWrite(RemoteAddr),
    /// Write, and consume a receive of the peer to deliver immediate data.
    RdmaWriteWithImm(RemoteAddr, u32),
    /// Read the peer's memory.
    RdmaRead(RemoteAddr),
    /// Send, and take from the peer's keys the one with this number.
    SendWithInv(u32),
    /// Compare eight bytes of the peer with `compare`, and store `swap` if they are equal; the bytes
    /// as they were come back.
    AtomicCmpSwap {
        /// The peer's memory, a multiple of eight.
        remote: RemoteAddr,
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// Add to eight bytes of the peer; the bytes as they were come back.
    AtomicFetchAdd {
        /// The peer's memory, a multiple of eight.
        remote: RemoteAddr,
        /// Summand.
        add: u64,
    },
    /// Bind the memory window whose present key is `rkey`; from then on `new_rkey` is.
    BindMw {
        /// Present key.
        rkey: u32,
        /// Key from now on: as the present one but for its lowest byte.
        new_rkey: u32,
        /// What it opens.
        bind: MwBind,
    },
    /// Invalidate the remote key of a memory window of this side.
    LocalInv(u32),
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// First byte, as a virtual address of the peer.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: u32,
}

/// Where the bytes of a send come from.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, read when packets are built and perhaps again when they are repeated.
    Sges(&'a [Sge]),
    /// Bytes copied while posting (`IBV_SEND_INLINE`); up to the queue pair's `max_inline_data`.
    Inline(&'a [u8]),
}

/// A work request for the send queue (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The owner's name for it, handed back in its completion.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Source of the bytes; for `RdmaRead` and atomics the destination, `Sges` only.
    pub data: SendData<'a>,
    /// Flags.
    pub flags: SendFlags,
    /// Where a datagram goes; for UD queue pairs, and only for them.
    pub ud: Option<UdDestination<'a>>,
}

/// An address handle (`struct ibv_ah`): a destination whose route was found once.
pub trait Ah: Send + Sync + fmt::Debug {
    /// How to reach it.
    fn attr(&self) -> AhAttr;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct UdDestination<'a> {
    /// Its host or group.
    pub ah: &'a dyn Ah,
    /// Its queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// Its Q_Key. One with the highest bit set stands for the Q_Key of the sending queue pair.
    pub qkey: QKey,
}

/// A work request for the receive queue (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The owner's name for it, handed back in its completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// How a work request ended (`enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is printed in words")]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    RemAbortErr = 16,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error: a message is longer than its receive buffer",
            Self::LocQpOpErr => "local queue pair operation error",
            Self::LocEecOpErr => "local EE context operation error",
            Self::LocProtErr => "local protection error: key or range of the local memory is wrong",
            Self::WrFlushErr => "flushed: the queue pair is in error or was reset",
            Self::MwBindErr => "memory window bind error",
            Self::BadRespErr => "bad response from the peer",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote invalid request: the peer could not accept the message",
            Self::RemAccessErr => "remote access error: key, range or rights of the peer's memory",
            Self::RemOpErr => "remote operation error",
            Self::RetryExcErr => "retries exceeded: the peer does not acknowledge",
            Self::RnrRetryExcErr => "receiver not ready: the peer posted no receive",
            Self::RemAbortErr => "aborted by the peer",
            Self::FatalErr => "fatal error",
            Self::RespTimeoutErr => "response timed out",
            Self::GeneralErr => "general error",
        })
    }
}

/// What a completion is for (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the operation of its name")]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// A completion (`struct ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The owner's name for the work request.
    pub wr_id: u64,
    /// How it ended; on an error only `wr_id`, `qp_num` and this count.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes moved (receives and reads).
    pub byte_len: u32,
    /// Immediate data, network order as the wire has it.
    pub imm_data: Option<u32>,
    /// Local queue pair.
    pub qp_num: Qpn,
    /// Sender's queue pair (UD).
    pub src_qp: Qpn,
    /// Whether a GRH stands before the data (UD).
    pub has_grh: bool,
    /// The key that a send of the peer invalidated.
    pub invalidated_rkey: Option<u32>,
}

impl WorkCompletion {
    /// A place for a completion, as [`Cq::poll`](crate::traits::Cq::poll) fills them. Its status is
    /// [`WcStatus::GeneralErr`], so that a place that was not filled is taken for no success.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::GeneralErr,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm_data: None,
        qp_num: Qpn::new(0),
        src_qp: Qpn::new(0),
        has_grh: false,
        invalidated_rkey: None,
    };
}
