//! Work requests and completions.

use core::any::Any;
use core::fmt;

use bitflags::bitflags;
use portolan_wire::addr::{QKey, Qpn};

use super::{AhAttr, MwBind, Srqn};

bitflags! {
    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1;
        /// Generate a completion.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 1 << 2;
    }
}

/// A segment of registered memory (`struct ibv_sge`, with the same layout).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First byte, as a virtual address of this process.
    pub addr: u64,
    /// Length, in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// The operation of a send work request (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// Send to a posted receive of the peer.
    Send,
    /// Send with 32 bits of immediate data, in network byte order.
    SendWithImm(u32),
    /// Write to the peer's memory.
    RdmaWrite(RemoteAddr),
    /// Write, and consume a receive of the peer to deliver the immediate data.
    RdmaWriteWithImm(RemoteAddr, u32),
    /// Read the peer's memory.
    RdmaRead(RemoteAddr),
    /// Send, and invalidate the peer's remote key with this value.
    SendWithInv(u32),
    /// Compare eight bytes of the peer with `compare`, and store `swap` if they are equal. Returns
    /// the original bytes.
    AtomicCmpSwap {
        /// The peer's memory, aligned to eight bytes.
        remote: RemoteAddr,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add to eight bytes of the peer. Returns the original bytes.
    AtomicFetchAdd {
        /// The peer's memory, aligned to eight bytes.
        remote: RemoteAddr,
        /// Summand.
        add: u64,
    },
    /// Bind the memory window whose current key is `rkey`; `new_rkey` replaces that key.
    BindMw {
        /// Current key.
        rkey: u32,
        /// New key; differs from the current one only in its lowest byte.
        new_rkey: u32,
        /// The memory and rights to bind.
        bind: MwBind,
    },
    /// Invalidate the remote key of a local memory window.
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

/// The source of a send's bytes.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, read when packets are built and again if they are retransmitted.
    Sges(&'a [Sge]),
    /// Bytes copied at posting (`IBV_SEND_INLINE`), at most the queue pair's `max_inline_data`.
    Inline(&'a [u8]),
}

/// A work request for the send queue (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The owner's tag, returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Source of the bytes; for `RdmaRead` and atomics the destination, `Sges` only.
    pub data: SendData<'a>,
    /// Flags.
    pub flags: SendFlags,
    /// Destination of a datagram; only for UD queue pairs, which require it.
    pub ud: Option<UdDestination<'a>>,
    /// Shared receive queue of the peer; only for XRC queue pairs, which require it.
    pub srq: Option<Srqn>,
}

/// An address handle (`struct ibv_ah`): a destination with a resolved route.
pub trait Ah: crate::sealed::Sealed + Send + Sync + fmt::Debug {
    /// The address vector.
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
    /// Its Q_Key. If the highest bit is set, the Q_Key of the sending queue pair is used instead.
    pub qkey: QKey,
}

/// A work request for the receive queue (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The owner's tag, returned in the completion.
    pub wr_id: u64,
    /// Destination of the message.
    pub sges: &'a [Sge],
}

crate::enum_table! {
    /// The status of a completed work request (`enum ibv_wc_status`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u32)]
    #[non_exhaustive]
    #[allow(missing_docs, reason = "each has its words beside it")]
    pub enum WcStatus {
        Success = 0 => "success",
        LocLenErr = 1 => "local length error: a message is longer than its receive buffer",
        LocQpOpErr = 2 => "local queue pair operation error",
        LocEecOpErr = 3 => "local EE context operation error",
        LocProtErr = 4 => "local protection error: key or range of the local memory is wrong",
        WrFlushErr = 5 => "flushed: the queue pair is in error or was reset",
        MwBindErr = 6 => "memory window bind error",
        BadRespErr = 7 => "bad response from the peer",
        LocAccessErr = 8 => "local access error",
        RemInvReqErr = 9 => "remote invalid request: the peer could not accept the message \
            (usually longer than the peer's receive buffers, Options::receive_size)",
        RemAccessErr = 10 => "remote access error: key, range or rights of the peer's memory",
        RemOpErr = 11 => "remote operation error",
        RetryExcErr = 12 => "retries exceeded: the peer does not acknowledge",
        RnrRetryExcErr = 13 => "receiver not ready: the peer posted no receive",
        RemAbortErr = 16 => "aborted by the peer",
        FatalErr = 19 => "fatal error",
        RespTimeoutErr = 20 => "response timed out",
        GeneralErr = 21 => "general error",
    }
}

/// A request of the peer that this side refused for good. The connection is over then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Refusal {
    /// How the peer's work request completes.
    pub status: WcStatus,
    /// The memory that the request named; `None` if it named none, or in an earlier packet.
    pub memory: Option<RefusedMemory>,
    /// Why that memory may not be used; `None` if something else is wrong, and on the kernel's devices.
    pub denial: Option<Denial>,
}

/// Why a peer may not use memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Denial {
    /// The key was never given, or was withdrawn.
    NoKey,
    /// The key is that of another protection domain, or of a window of another connection.
    Elsewhere,
    /// The range is not within the memory of the key.
    Range {
        /// First byte of that memory, as a virtual address of this process.
        addr: u64,
        /// Its length, in bytes.
        length: u64,
    },
    /// The key does not give the right for the operation.
    Rights,
}

/// Memory of this side that a refused request named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusedMemory {
    /// First byte, as a virtual address of this process.
    pub addr: u64,
    /// Length, in bytes.
    pub length: u32,
    /// Remote key.
    pub rkey: u32,
}

impl Refusal {
    /// Creates the record of a refusal.
    pub const fn new(status: WcStatus, memory: Option<RefusedMemory>) -> Self {
        Self {
            status,
            memory,
            denial: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.denial, self.status) {
            (Some(Denial::NoKey), _) => "this side has withdrawn the key, or never gave it",
            (Some(Denial::Elsewhere), _) => {
                "the key is for another protection domain or connection"
            }
            (Some(Denial::Range { .. }), _) => "the range is outside of the key's memory",
            (Some(Denial::Rights), _) => "the key does not give the right for the operation",
            (None, WcStatus::RemAccessErr) => {
                "key, range or rights of this side's memory are wrong"
            }
            (None, WcStatus::RemInvReqErr) => "it is invalid, or not allowed on this connection",
            (None, WcStatus::RemOpErr) => "this side's receive cannot take it",
            (None, _) => "this side cannot carry it out",
        })?;
        if let Some(Denial::Range { addr, length }) = self.denial {
            write!(f, ", {length} bytes at {addr:#x}")?;
        }
        match self.memory {
            Some(RefusedMemory { addr, length, rkey }) => {
                write!(f, " ({length} bytes at {addr:#x}, key {rkey:#x})")
            }
            None => Ok(()),
        }
    }
}

/// The operation of a completed work request (`enum ibv_wc_opcode`).
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
    /// The owner's tag of the work request.
    pub wr_id: u64,
    /// Status; on an error only `wr_id`, `qp_num` and this field are valid.
    pub status: WcStatus,
    /// Operation.
    pub opcode: WcOpcode,
    /// Bytes transferred (receives and reads).
    pub byte_len: u32,
    /// Immediate data, in network byte order.
    pub imm_data: Option<u32>,
    /// Local queue pair.
    pub qp_num: Qpn,
    /// Sender's queue pair (UD).
    pub src_qp: Qpn,
    /// Whether a GRH precedes the data (UD).
    pub has_grh: bool,
    /// Service level (UD). RoCE has no service level: the field holds the datagram's network header, as on mlx5 devices
    /// ([`NetworkHeader::service_level`]).
    pub sl: u8,
    /// LID of the sender's port (UD over InfiniBand); 0 on Ethernet.
    pub slid: u16,
    /// Low bits of the LID that the datagram was sent to (UD over InfiniBand).
    pub dlid_path_bits: u8,
    /// The key that the peer's send invalidated.
    pub invalidated_rkey: Option<u32>,
    /// Time at which it was queued, on the device's clock ([`Device::clock_ns`]); 0 unless the queue stamps
    /// completions ([`Device::create_stamping_cq`]).
    ///
    /// [`Device::clock_ns`]: crate::traits::Device::clock_ns
    /// [`Device::create_stamping_cq`]: crate::traits::Device::create_stamping_cq
    pub timestamp_ns: u64,
}

/// The network header of a received RoCEv2 datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkHeader {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl NetworkHeader {
    /// The value that a completion holds instead of the service level. IBTA A17.4.5.1 requires completions to report
    /// the network header, but the verbs have no field for it. Programs (UCX until 1.18) read it where mlx5 devices
    /// report it: bit 3 means a UDP header, the other bits number the network header.
    pub const fn service_level(self) -> u8 {
        const UDP: u8 = 1 << 3;
        match self {
            Self::V6 => UDP | 1,
            Self::V4 => UDP | 2,
        }
    }
}

impl WorkCompletion {
    /// An empty slot for [`Cq::poll`](crate::traits::Cq::poll). Its status is
    /// [`WcStatus::GeneralErr`], so that an unfilled slot never reads as a success.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::GeneralErr,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm_data: None,
        qp_num: Qpn::new(0),
        src_qp: Qpn::new(0),
        has_grh: false,
        sl: 0,
        slid: 0,
        dlid_path_bits: 0,
        invalidated_rkey: None,
        timestamp_ns: 0,
    };
}
