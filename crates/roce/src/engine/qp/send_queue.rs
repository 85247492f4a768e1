//! The send queue: posted requests, oldest first, until they complete.

use portolan_provider::verbs::{
    QpInit, SendData, SendFlags, SendOp, SendWr, Sge, Srqn, WcStatus, WorkCompletion,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::eth::XrcEthRepr;

use super::places::Places;
use super::send_entry::{EntryData, SendEntry, awaits_data, is_atomic, is_local};

/// Maximum length of a message, in bytes (IBTA C9-94: 2^31).
pub(super) const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Length of an atomic's operand and result, in bytes (IBTA 9.4.5).
pub(super) const ATOMIC_BYTES: u64 = 8;

/// Number of packets of a message with `len` bytes; for a read, of its responses. An empty message has one.
pub(super) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// The send queue. The places of its entries keep their buffers for later ones, so posting only allocates until each place
/// that is used has had the largest of each kind.
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
        let packets = packets_of_request(wr, len, mtu);
        let Some(entry) = self.append(wr, len, packets) else {
            return Ok(());
        };
        (entry.op, entry.xrceth) = (wr.op, xrceth);
        match wr.data {
            // It has none.
            _ if is_local(&wr.op) => entry.set_sges(&[]),
            SendData::Sges([sge]) => entry.data = EntryData::One(*sge),
            SendData::Sges(sges) => entry.set_sges(sges),
            SendData::Inline(bytes) => entry.set_inline(bytes),
        }
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
    /// check it again. The caller has read the request's element already; `None` for inline data.
    #[inline(always)]
    pub(super) fn push_send_only(&mut self, wr: &SendWr<'_>, len: u32, sge: Option<Sge>) {
        let Some(entry) = self.append(wr, len, 1) else {
            return;
        };
        // Shorter than a copy of any operation.
        match wr.op {
            SendOp::SendWithImm(immediate) => entry.op = SendOp::SendWithImm(immediate),
            _ => entry.op = SendOp::Send,
        }
        match (sge, wr.data) {
            (Some(sge), _) => entry.data = EntryData::One(sge),
            (None, SendData::Inline(bytes)) => entry.set_inline(bytes),
            (None, SendData::Sges(sges)) => entry.set_sges(sges),
        }
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
        if let Some(entry) = self.append(wr, len, packets) {
            (entry.op, entry.placed_at) = (wr.op, Some(at));
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

    /// Appends a request without its operation and data, and numbers its packets.
    #[inline(always)]
    fn append(&mut self, wr: &SendWr<'_>, len: u32, packets: u32) -> Option<&mut SendEntry> {
        let signaled = self.is_signaled(wr);
        let first = self.end;
        let end = first + u64::from(packets);
        self.end = end;
        let entry = self.entries.push()?;
        entry.replace(wr, len, first, end);
        entry.signaled = signaled;
        Some(entry)
    }

    /// Whether the program gets a completion of a request also if it succeeds.
    #[inline]
    pub(super) fn is_signaled(&self, wr: &SendWr<'_>) -> bool {
        self.signal_all || wr.flags.contains(SendFlags::SIGNALED)
    }

    /// Whether it has no request, but takes one with one element.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.depth > 0 && self.max_sge > 0
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
            self.entries.pop_back();
        }
    }

    /// Removes the oldest entry and completes it with `status`. Returns the completion if it must be reported, as
    /// errors always must.
    #[inline]
    pub(super) fn complete_front(&mut self, status: WcStatus, qpn: Qpn) -> Option<WorkCompletion> {
        let entry = self.entries.front()?;
        let report = entry.signaled || status != WcStatus::Success;
        let wc = report.then(|| entry.completion(status, qpn));
        self.entries.pop_front();
        wc
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
