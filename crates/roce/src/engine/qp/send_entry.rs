//! A posted send request.

use alloc::vec::Vec;

use portolan_provider::verbs::{
    SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_wire::Qpn;
use portolan_wire::eth::XrcEthRepr;

/// A posted send request.
///
/// Its packets are numbered when it is posted: packet `n` of the connection has the PSN `sq_psn + n` modulo 2^24, and
/// `n` itself never wraps.
#[derive(Debug)]
pub(super) struct SendEntry {
    wr_id: u64,
    pub(super) op: SendOp,
    pub(super) fence: bool,
    pub(super) solicited: bool,
    pub(super) signaled: bool,
    /// Length of the message.
    pub(super) len: u32,
    /// Number of its first packet.
    pub(super) first: u64,
    /// Number of the packet after its last.
    pub(super) end: u64,
    pub(super) data: EntryData,
    /// The address in this process at which the peer's memory has its bytes already.
    pub(super) placed_at: Option<u64>,
    /// The peer's shared receive queue, on an extended reliable connection.
    pub(super) xrceth: Option<XrcEthRepr>,
    /// The result of local work, once known.
    pub(super) outcome: Option<core::result::Result<(), WcStatus>>,
    /// The buffers of [`EntryData::Sges`] and [`EntryData::Inline`]. The next entry in the same place uses them again.
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

/// The location of a posted request's data.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryData {
    /// Registered memory, which is the source or, for a read, the destination.
    Sges,
    /// As above, one piece.
    One(Sge),
    /// In the entry.
    Inline,
    /// Only in the peer's memory.
    Taken,
}

impl Default for SendEntry {
    fn default() -> Self {
        Self {
            wr_id: 0,
            op: SendOp::Send,
            fence: false,
            solicited: false,
            signaled: false,
            len: 0,
            first: 0,
            end: 0,
            data: EntryData::Taken,
            placed_at: None,
            xrceth: None,
            outcome: None,
            sges: Vec::new(),
            inline: Vec::new(),
        }
    }
}

impl SendEntry {
    /// Stores another request, with the numbers of its first packet and of the one after its last. Its operation, its data
    /// and whether it is signaled are to be set.
    #[inline(always)]
    pub(super) fn replace(&mut self, wr: &SendWr<'_>, len: u32, first: u64, end: u64) {
        self.wr_id = wr.wr_id;
        self.fence = wr.flags.contains(SendFlags::FENCE);
        self.solicited = wr.flags.contains(SendFlags::SOLICITED);
        self.len = len;
        self.first = first;
        self.end = end;
        self.data = EntryData::Taken;
        self.placed_at = None;
        self.xrceth = None;
        self.outcome = None;
    }

    pub(super) fn set_sges(&mut self, sges: &[Sge]) {
        self.data = EntryData::Sges;
        self.sges.clear();
        self.sges.extend_from_slice(sges);
    }

    pub(super) fn set_inline(&mut self, bytes: &[u8]) {
        self.data = EntryData::Inline;
        self.inline.clear();
        self.inline.extend_from_slice(bytes);
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::RdmaRead(_))
    }

    /// Whether the peer answers with data, and so stores the request in its responder resources: reads and atomics.
    pub(super) fn awaits_data(&self) -> bool {
        awaits_data(&self.op)
    }

    pub(super) fn is_atomic(&self) -> bool {
        is_atomic(&self.op)
    }

    /// Whether it is local work, which sends nothing.
    pub(super) fn is_local(&self) -> bool {
        is_local(&self.op)
    }

    /// Whether it is local work and was executed.
    pub(super) fn is_done(&self) -> bool {
        self.outcome == Some(Ok(()))
    }

    /// The scatter/gather elements; empty for inline data.
    #[inline]
    pub(super) fn sges(&self) -> &[Sge] {
        match &self.data {
            EntryData::Sges => &self.sges,
            EntryData::One(sge) => core::slice::from_ref(sge),
            EntryData::Inline | EntryData::Taken => &[],
        }
    }

    /// The inline data; empty for scatter/gather elements.
    pub(super) fn inline(&self) -> &[u8] {
        match self.data {
            EntryData::Inline => &self.inline,
            _ => &[],
        }
    }

    #[inline]
    pub(super) fn completion(&self, status: WcStatus, qpn: Qpn) -> WorkCompletion {
        WorkCompletion {
            status,
            ..success(&self.op, self.wr_id, self.len, qpn)
        }
    }
}

/// The completion of a request with `len` bytes that succeeds.
#[inline]
pub(super) fn success(op: &SendOp, wr_id: u64, len: u32, qpn: Qpn) -> WorkCompletion {
    let (opcode, byte_len) = match op {
        SendOp::RdmaWrite(_) | SendOp::RdmaWriteWithImm(..) => (WcOpcode::RdmaWrite, 0),
        SendOp::RdmaRead(_) => (WcOpcode::RdmaRead, len),
        SendOp::AtomicCmpSwap { .. } => (WcOpcode::CompSwap, len),
        SendOp::AtomicFetchAdd { .. } => (WcOpcode::FetchAdd, len),
        SendOp::BindMw { .. } => (WcOpcode::BindMw, 0),
        SendOp::LocalInv(_) => (WcOpcode::LocalInv, 0),
        _ => (WcOpcode::Send, 0),
    };
    WorkCompletion {
        wr_id,
        status: WcStatus::Success,
        opcode,
        byte_len,
        qp_num: qpn,
        ..WorkCompletion::EMPTY
    }
}

/// Whether the peer answers with data.
pub(super) fn awaits_data(op: &SendOp) -> bool {
    matches!(op, SendOp::RdmaRead(_)) || is_atomic(op)
}

/// Whether the work is local and sends nothing.
pub(super) fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::BindMw { .. } | SendOp::LocalInv(_))
}

pub(super) fn is_atomic(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::AtomicCmpSwap { .. } | SendOp::AtomicFetchAdd { .. }
    )
}
