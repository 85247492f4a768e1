//! The send queue: posted requests, oldest first, until they complete.

use alloc::vec::Vec;

use portolan_provider::verbs::{
    QpInit, SendData, SendFlags, SendOp, SendWr, Sge, Srqn, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::eth::XrcEthRepr;

use super::places::Places;

/// Maximum length of a message, in bytes (IBTA C9-94: 2^31).
pub(super) const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Length of an atomic's operand and result, in bytes (IBTA 9.4.5).
pub(super) const ATOMIC_BYTES: u64 = 8;

/// Number of packets of a message with `len` bytes; for a read, of its responses. An empty message has one.
pub(super) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

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
}

/// The location of a posted request's data.
#[derive(Debug)]
pub(super) enum EntryData {
    /// Registered memory, which is the source or, for a read, the destination.
    Sges(Vec<Sge>),
    /// As above, one piece.
    One(Sge),
    /// Here.
    Inline(Vec<u8>),
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
        }
    }
}

impl SendEntry {
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

    /// Removes its data, whose buffer is used again.
    fn take_data(&mut self) -> EntryData {
        core::mem::replace(&mut self.data, EntryData::Taken)
    }

    /// The scatter/gather elements; empty for inline data.
    #[inline]
    pub(super) fn sges(&self) -> &[Sge] {
        match &self.data {
            EntryData::Sges(sges) => sges,
            EntryData::One(sge) => core::slice::from_ref(sge),
            EntryData::Inline(_) | EntryData::Taken => &[],
        }
    }

    #[inline]
    pub(super) fn completion(&self, status: WcStatus, qpn: Qpn) -> WorkCompletion {
        let opcode = match self.op {
            SendOp::RdmaWrite(_) | SendOp::RdmaWriteWithImm(..) => WcOpcode::RdmaWrite,
            SendOp::RdmaRead(_) => WcOpcode::RdmaRead,
            SendOp::AtomicCmpSwap { .. } => WcOpcode::CompSwap,
            SendOp::AtomicFetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::BindMw { .. } => WcOpcode::BindMw,
            SendOp::LocalInv(_) => WcOpcode::LocalInv,
            _ => WcOpcode::Send,
        };
        WorkCompletion {
            wr_id: self.wr_id,
            status,
            opcode,
            byte_len: if self.awaits_data() { self.len } else { 0 },
            qp_num: qpn,
            ..WorkCompletion::EMPTY
        }
    }
}

/// The send queue. Buffers of completed entries are reused, so posting only allocates while the number of outstanding
/// requests grows.
#[derive(Debug)]
pub(super) struct SendQueue {
    entries: Places<SendEntry>,
    depth: u32,
    max_sge: u32,
    max_inline_data: u32,
    signal_all: bool,
    is_xrc: bool,
    /// Number of the packet after the last one posted.
    end: u64,
    spare_sges: Vec<Vec<Sge>>,
    spare_inline: Vec<Vec<u8>>,
}

impl SendQueue {
    pub(super) fn new(init: &QpInit) -> Self {
        Self {
            entries: Places::default(),
            depth: init.cap.max_send_wr,
            max_sge: init.cap.max_send_sge,
            max_inline_data: init.cap.max_inline_data,
            signal_all: init.sq_sig_all,
            is_xrc: init.qp_type.is_xrc(),
            end: 0,
            spare_sges: Vec::new(),
            spare_inline: Vec::new(),
        }
    }

    /// Number of the packet after the last one posted.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Appends a request and numbers its packets.
    ///
    /// # Errors
    /// `LimitReached` for a full queue; `InvalidArgument` for too many scatter/gather elements, too much inline data,
    /// too long a message, or an atomic whose destination is not exactly eight bytes.
    #[inline]
    pub(super) fn push(&mut self, wr: &SendWr<'_>, mtu: u32) -> Result<()> {
        self.check_room()?;
        let len = self.check_data(wr)?;
        let xrceth = self.is_xrc.then(|| xrceth_of(wr)).transpose()?;
        let data = match wr.data {
            _ if is_local(&wr.op) => EntryData::Sges(self.spare_sges.pop().unwrap_or_default()),
            SendData::Sges([sge]) => EntryData::One(*sge),
            SendData::Sges(sges) => {
                let mut copy = self.spare_sges.pop().unwrap_or_default();
                copy.extend_from_slice(sges);
                EntryData::Sges(copy)
            }
            SendData::Inline(bytes) => self.inline(bytes),
        };
        self.append(wr, len, packets_of_request(wr, len, mtu), data, xrceth);
        Ok(())
    }

    /// Whether [`push_send_only`](Self::push_send_only) accepts a request: a send of one packet with a payload, without a
    /// fence, whose bytes are one element or inline data.
    #[inline(always)]
    pub(super) fn takes_send_only(&self, wr: &SendWr<'_>, mtu: u32) -> bool {
        let (len, is_allowed) = match wr.data {
            SendData::Sges([sge]) => (sge.length as usize, self.max_sge > 0),
            SendData::Inline(bytes) => (bytes.len(), bytes.len() <= self.max_inline_data as usize),
            SendData::Sges(_) => return false,
        };
        matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_))
            && !wr.flags.contains(SendFlags::FENCE)
            && is_allowed
            && (1..=mtu as usize).contains(&len)
            && self.entries.len() < self.depth as usize
    }

    /// Appends a request that [`takes_send_only`](Self::takes_send_only) has accepted, and numbers its packet. Does not
    /// check it again.
    #[inline(always)]
    pub(super) fn push_send_only(&mut self, wr: &SendWr<'_>) {
        let (data, len) = match wr.data {
            SendData::Sges([sge]) => (EntryData::One(*sge), sge.length),
            SendData::Sges(_) => return,
            // At most one MTU.
            SendData::Inline(bytes) => (self.inline(bytes), bytes.len() as u32),
        };
        self.append(wr, len, 1, data, None);
    }

    #[inline(always)]
    fn inline(&mut self, bytes: &[u8]) -> EntryData {
        let mut copy = self.spare_inline.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        EntryData::Inline(copy)
    }

    /// Appends a request whose `len` bytes are in the peer's memory already, at an address in this process.
    ///
    /// # Errors
    /// `LimitReached` for a full queue.
    pub(super) fn push_taken(
        &mut self,
        wr: &SendWr<'_>,
        (at, len): (u64, u32),
        mtu: u32,
    ) -> Result<()> {
        self.check_room()?;
        let packets = packets_of_request(wr, len, mtu);
        self.append(wr, len, packets, EntryData::Taken, None);
        if let Some(entry) = self.entries.back_mut() {
            entry.placed_at = Some(at);
        }
        Ok(())
    }

    #[inline]
    fn check_room(&self) -> Result<()> {
        match self.entries.len() >= self.depth as usize {
            true => Err(full(Step::PostSend, "send work requests", self.depth)),
            false => Ok(()),
        }
    }

    #[inline(always)]
    fn append(
        &mut self,
        wr: &SendWr<'_>,
        len: u32,
        packets: u32,
        data: EntryData,
        xrceth: Option<XrcEthRepr>,
    ) {
        let first = self.end;
        self.end += u64::from(packets);
        let signaled = self.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        if let Some(entry) = self.entries.push() {
            *entry = SendEntry {
                wr_id: wr.wr_id,
                op: wr.op,
                fence: wr.flags.contains(SendFlags::FENCE),
                solicited: wr.flags.contains(SendFlags::SOLICITED),
                signaled,
                len,
                first,
                end: self.end,
                placed_at: None,
                data,
                xrceth,
                outcome: None,
            };
        }
    }

    /// Length of the message, if its data is valid.
    #[inline]
    fn check_data(&self, wr: &SendWr<'_>) -> Result<u32> {
        let invalid = |what, max: u64, found: u64| {
            let expected = format_args!("at most {max}");
            Err(Error::invalid(Step::PostSend, what, expected, found))
        };
        let len = match wr.data {
            // Local work has no data.
            _ if is_local(&wr.op) => 0,
            SendData::Sges(sges) if sges.len() > self.max_sge as usize => {
                return invalid(
                    "scatter/gather elements",
                    self.max_sge.into(),
                    sges.len() as u64,
                );
            }
            SendData::Sges(sges) => total_length(sges),
            SendData::Inline(_) if awaits_data(&wr.op) => {
                let (expected, found) = ("registered memory for the answer", "inline data");
                return Err(Error::invalid(Step::PostSend, "data", expected, found));
            }
            SendData::Inline(bytes) if bytes.len() > self.max_inline_data as usize => {
                let max = self.max_inline_data.into();
                return invalid("bytes of inline data", max, bytes.len() as u64);
            }
            SendData::Inline(bytes) => bytes.len() as u64,
        };
        if len > MESSAGE_BYTES_MAX {
            return invalid("bytes of the message", MESSAGE_BYTES_MAX, len);
        }
        if is_atomic(&wr.op) && len != ATOMIC_BYTES {
            let (what, expected) = ("bytes of memory for an atomic's answer", ATOMIC_BYTES);
            return Err(Error::invalid(Step::PostSend, what, expected, len));
        }
        // 2^31 fits.
        Ok(len as u32)
    }

    /// The entry at `index`, counted from the oldest.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&SendEntry> {
        self.entries.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut SendEntry> {
        self.entries.get_mut(index)
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&SendEntry> {
        self.entries.front()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops all entries after the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        while self.entries.len() > len
            && let Some(entry) = self.entries.back_mut()
        {
            self.end = entry.first;
            let data = entry.take_data();
            self.entries.pop_back();
            self.recycle(data);
        }
    }

    /// Removes the oldest entry and completes it with `status`. Returns the completion if it must be reported, as
    /// errors always must.
    #[inline]
    pub(super) fn complete_front(&mut self, status: WcStatus, qpn: Qpn) -> Option<WorkCompletion> {
        let entry = self.entries.front_mut()?;
        let report = entry.signaled || status != WcStatus::Success;
        let wc = report.then(|| entry.completion(status, qpn));
        if matches!(entry.data, EntryData::Sges(_) | EntryData::Inline(_)) {
            let data = entry.take_data();
            self.recycle(data);
        }
        self.entries.pop_front();
        wc
    }

    fn recycle(&mut self, data: EntryData) {
        match data {
            EntryData::Sges(mut sges) => {
                sges.clear();
                self.spare_sges.push(sges);
            }
            EntryData::Inline(mut bytes) => {
                bytes.clear();
                self.spare_inline.push(bytes);
            }
            EntryData::One(_) | EntryData::Taken => {}
        }
    }
}

/// The header with the number of the peer's shared receive queue, which has 24 bits.
fn xrceth_of(wr: &SendWr<'_>) -> Result<XrcEthRepr> {
    match wr.srq {
        Some(Srqn(srqn)) if srqn <= Srqn::WIRE_MAX => Ok(XrcEthRepr { srqn }),
        srq => {
            let (what, expected) = ("shared receive queue", "a 24-bit number");
            let found = format_args!("{srq:?}");
            Err(Error::invalid(Step::PostSend, what, expected, found))
        }
    }
}

/// Whether the peer answers with data.
pub(super) fn awaits_data(op: &SendOp) -> bool {
    matches!(op, SendOp::RdmaRead(_)) || is_atomic(op)
}

/// Whether the work is local and sends nothing.
fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::BindMw { .. } | SendOp::LocalInv(_))
}

fn is_atomic(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::AtomicCmpSwap { .. } | SendOp::AtomicFetchAdd { .. }
    )
}

/// Number of packets of a request with `len` bytes. Local work has none.
#[inline]
fn packets_of_request(wr: &SendWr<'_>, len: u32, mtu: u32) -> u32 {
    match is_local(&wr.op) {
        true => 0,
        false => packets_of(len, mtu),
    }
}

/// Total length of all elements. Cannot overflow: lengths have 32 bits, and memory has fewer than 2^32 elements.
#[inline]
pub(super) fn total_length(sges: &[Sge]) -> u64 {
    match sges {
        // Mostly. The sum is a loop that the compiler unrolls.
        [sge] => sge.length.into(),
        sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    }
}

pub(in crate::engine) fn full(step: Step, what: &'static str, depth: u32) -> Error {
    let limit = depth.into();
    Error::new(step, Cause::LimitReached { what, limit })
}
