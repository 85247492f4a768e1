//! Unsent responses, in the order of their requests.

use alloc::collections::VecDeque;

use portolan_wire::Psn;
use portolan_wire::eth::Syndrome;

use crate::engine::PdId;
use crate::engine::qp::send_queue::packets_of;

/// A response to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// An acknowledgement or refusal: one packet.
    Acknowledge(Acknowledge),
    /// The remaining responses to a read.
    Read(ReadReply),
    /// The answer to an atomic: one packet.
    Atomic(AtomicReply),
}

/// An RC Acknowledge packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledge {
    pub(super) psn: Psn,
    pub(super) syndrome: Syndrome,
    pub(super) msn: u32,
}

/// The unsent read responses of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadReply {
    /// PSN of the next response.
    pub(super) psn: Psn,
    /// Protection domain of its memory.
    pub(super) pd: PdId,
    /// Whether the next response is the first.
    pub(super) is_first: bool,
    /// Bytes left, starting at `va`.
    pub(super) remaining: u32,
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) msn: u32,
    /// It answers a duplicate request.
    pub(super) is_repeated: bool,
}

/// An RC ATOMIC Acknowledge packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtomicReply {
    pub(super) psn: Psn,
    /// The value before the operation.
    pub(super) original: u64,
    pub(super) msn: u32,
    /// It answers a duplicate request.
    pub(super) is_repeated: bool,
}

impl Reply {
    /// PSN of its next packet.
    fn psn(&self) -> Psn {
        match self {
            Self::Acknowledge(acknowledge) => acknowledge.psn,
            Self::Read(read) => read.psn,
            Self::Atomic(atomic) => atomic.psn,
        }
    }

    /// Number of its packets.
    fn packets(&self, mtu: u32) -> u32 {
        match self {
            Self::Read(read) => packets_of(read.remaining, mtu),
            Self::Acknowledge(_) | Self::Atomic(_) => 1,
        }
    }

    /// Whether it answers a read or an atomic.
    fn has_data(&self) -> bool {
        !matches!(self, Self::Acknowledge(_))
    }

    fn is_repeated(&self) -> bool {
        match self {
            Self::Acknowledge(_) => false,
            Self::Read(read) => read.is_repeated,
            Self::Atomic(atomic) => atomic.is_repeated,
        }
    }
}

/// The queue of responses.
///
/// An acknowledgement also covers all requests before it. So two of them are never adjacent: if one gets behind
/// another, by being added or because the entry between was removed, it replaces the other. The responder resources
/// limit the answers with data, and between and around `n` of them are at most `n + 1` acknowledgements. So the queue
/// has at most `2 n + 1` entries.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// All before `last`: empty, or up to an answer with data.
    queue: VecDeque<Reply>,
    /// The acknowledgement at the end. Mostly it is the only response.
    last: Option<Acknowledge>,
    /// Number of answers with data.
    data: usize,
}

/// Other responses than an acknowledgement are to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Others;

impl Replies {
    /// Number of reads and atomics whose answers are not completely sent.
    pub(super) fn data(&self) -> usize {
        self.data
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.last.is_none()
    }

    pub(super) fn front(&self) -> Option<Reply> {
        let first = self.queue.front().copied();
        first.or(self.last.map(Reply::Acknowledge))
    }

    /// The only response, if it is an acknowledgement; an error if there are others.
    #[inline]
    pub(super) fn lone(&self) -> Result<Option<Acknowledge>, Others> {
        match self.queue.is_empty() {
            true => Ok(self.last),
            false => Err(Others),
        }
    }

    /// Adds the answer to a read or atomic.
    ///
    /// Answers are in PSN order, because data that arrive early look like a loss of the data before. Queued data of the
    /// same read from a later PSN on are included in the new answer and removed. Other reads and acknowledgements stay,
    /// because the request may be a stray copy that no further repetitions follow.
    pub(super) fn push_data(&mut self, reply: Reply, mtu: u32) {
        self.queue_last();
        let (first, packets) = (reply.psn(), i64::from(reply.packets(mtu)));
        let within = |psn: Psn| (0..packets).contains(&i64::from(psn.diff(first)));
        self.queue
            .retain(|waiting| !(waiting.has_data() && within(waiting.psn())));
        self.merge_acknowledgements();
        let later = |waiting: &Reply| waiting.psn().diff(first) > 0;
        let position = self.queue.iter().position(later);
        self.queue
            .insert(position.unwrap_or(self.queue.len()), reply);
        self.data = self.queue.iter().filter(|reply| reply.has_data()).count();
        self.take_last();
    }

    /// Drops the oldest queued answer with data, if it answers a duplicate. If a requester then sends one read more
    /// than its limit, the duplicate was a stray copy and the requester has the data.
    pub(super) fn drop_oldest_repeated(&mut self) -> bool {
        let Some(index) = self.queue.iter().position(Reply::has_data) else {
            return false;
        };
        if !self.queue.get(index).is_some_and(Reply::is_repeated) {
            return false;
        }
        self.queue.remove(index);
        self.data -= 1;
        self.queue_last();
        self.merge_acknowledgements();
        self.take_last();
        true
    }

    /// Adds an acknowledgement. It replaces one at the end of the queue, unless that one is for a later request.
    #[inline]
    pub(super) fn push_acknowledge(&mut self, new: Acknowledge) {
        match &mut self.last {
            Some(waiting) => waiting.merge(new),
            None => self.last = Some(new),
        }
    }

    /// Removes the first response, which was sent.
    pub(super) fn pop_front(&mut self) {
        match self.queue.pop_front() {
            Some(reply) => self.data -= usize::from(reply.has_data()),
            None => self.last = None,
        }
    }

    /// Removes the [only response](Self::lone), which was sent.
    #[inline]
    pub(super) fn pop_lone(&mut self) {
        self.last = None;
    }

    /// One packet of the first read, with `bytes` bytes, was sent.
    pub(super) fn advance_read(&mut self, bytes: u32) {
        if let Some(Reply::Read(read)) = self.queue.front_mut() {
            read.psn = read.psn.next();
            read.is_first = false;
            read.remaining = read.remaining.saturating_sub(bytes);
            read.va = read.va.wrapping_add(bytes.into());
        }
    }

    /// Whether data with this PSN are queued.
    pub(super) fn will_send(&self, psn: Psn, mtu: u32) -> bool {
        self.queue.iter().any(|reply| {
            let distance = psn.diff(reply.psn());
            reply.has_data() && distance >= 0 && distance.unsigned_abs() < reply.packets(mtu)
        })
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.last = None;
        self.data = 0;
    }

    /// Puts the last acknowledgement into the queue for a moment.
    fn queue_last(&mut self) {
        let last = self.last.take().map(Reply::Acknowledge);
        self.queue.extend(last);
    }

    /// Undoes [`queue_last`](Self::queue_last).
    fn take_last(&mut self) {
        if let Some(Reply::Acknowledge(last)) = self.queue.back() {
            self.last = Some(*last);
            self.queue.pop_back();
        }
    }

    /// Merges adjacent acknowledgements. Linear in the few queued entries, and only called for duplicates.
    fn merge_acknowledgements(&mut self) {
        let mut index = 1;
        while let Some(reply) = self.queue.get(index).copied() {
            match (self.queue.get_mut(index - 1), reply) {
                (Some(Reply::Acknowledge(waiting)), Reply::Acknowledge(new)) => {
                    waiting.merge(new);
                    self.queue.remove(index);
                }
                _ => index += 1,
            }
        }
    }
}

impl Acknowledge {
    #[inline]
    pub(super) fn is_positive(&self) -> bool {
        matches!(self.syndrome, Syndrome::Ack { .. })
    }

    /// Combines both: the answer to a later request also covers earlier ones.
    fn merge(&mut self, new: Self) {
        if new.psn.diff(self.psn) >= 0 {
            *self = new;
        }
    }
}

#[cfg(test)]
mod tests;
