//! Responses waiting to be sent, in the order of the requests they answer.

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
    /// What is left of the responses to a read.
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
    /// Where its memory is.
    pub(super) pd: PdId,
    /// Whether the next response is the first.
    pub(super) is_first: bool,
    /// Bytes left, from `va` on.
    pub(super) remaining: u32,
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) msn: u32,
    /// It answers a request that had been carried out before.
    pub(super) is_repeated: bool,
}

/// An RC ATOMIC Acknowledge packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtomicReply {
    pub(super) psn: Psn,
    /// The value before the operation.
    pub(super) original: u64,
    pub(super) msn: u32,
    /// It answers a request that had been carried out before.
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

    /// Packets that it takes.
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
/// An acknowledgement speaks for all before it. So no two of them are ever next to each other: one
/// that comes to stand behind another, by being added or because what stood between was taken out,
/// takes its place. Answers with data are bounded by the responder's resources, and between and
/// around `n` of them are at most `n + 1` acknowledgements: the queue holds at most `2 n + 1`.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    /// How many are answers with data.
    data: usize,
}

impl Replies {
    /// Reads and atomics whose answers are not wholly sent.
    pub(super) fn data(&self) -> usize {
        self.data
    }

    pub(super) fn front(&self) -> Option<&Reply> {
        self.queue.front()
    }

    /// Adds the answer to a read or atomic.
    ///
    /// They stand in the order of their PSNs, for data that come early look like a loss of those
    /// before. What waits of the same read from a later PSN on is among them and goes; other reads
    /// and acknowledgements stay, for the request may be a stray copy after which no others are
    /// repeated.
    pub(super) fn push_data(&mut self, reply: Reply, mtu: u32) {
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
    }

    /// Drops the oldest answer with data that waits, if it is given for the second time. When a
    /// requester asks for one read more than it may have under way, that is a stray copy: it has
    /// the data.
    pub(super) fn drop_oldest_repeated(&mut self) -> bool {
        let Some(index) = self.queue.iter().position(Reply::has_data) else {
            return false;
        };
        if !self.queue.get(index).is_some_and(Reply::is_repeated) {
            return false;
        }
        self.queue.remove(index);
        self.data -= 1;
        self.merge_acknowledgements();
        true
    }

    /// Adds an acknowledgement, in place of one waiting at the end, unless that one is of a later
    /// request.
    pub(super) fn push_acknowledge(&mut self, new: Acknowledge) {
        match self.queue.back_mut() {
            Some(Reply::Acknowledge(waiting)) => waiting.merge(new),
            _ => self.queue.push_back(Reply::Acknowledge(new)),
        }
    }

    /// The front response is sent.
    pub(super) fn pop_front(&mut self) {
        if self.queue.pop_front().is_some_and(|reply| reply.has_data()) {
            self.data -= 1;
        }
    }

    /// One packet of the read at the front, with `bytes` bytes, is sent.
    pub(super) fn advance_read(&mut self, bytes: u32) {
        if let Some(Reply::Read(read)) = self.queue.front_mut() {
            read.psn = read.psn.next();
            read.is_first = false;
            read.remaining = read.remaining.saturating_sub(bytes);
            read.va = read.va.wrapping_add(bytes.into());
        }
    }

    /// Whether data with this PSN wait to be sent.
    pub(super) fn will_send(&self, psn: Psn, mtu: u32) -> bool {
        self.queue.iter().any(|reply| {
            let distance = psn.diff(reply.psn());
            reply.has_data() && distance >= 0 && distance.unsigned_abs() < reply.packets(mtu)
        })
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.data = 0;
    }

    /// Makes one of acknowledgements that have come to stand next to each other. Linear in the few
    /// that wait, and called only when answers are given again.
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
    /// Says what both say: a later request's answer speaks for the earlier ones.
    fn merge(&mut self, new: Self) {
        if new.psn.diff(self.psn) >= 0 {
            *self = new;
        }
    }
}

#[cfg(test)]
mod tests;
