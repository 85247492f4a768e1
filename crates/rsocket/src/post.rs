//! Work that an endpoint's owner posts, and the meaning of its completion.

/// Memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// First byte, as a virtual address of the peer.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
}

/// A work request for the send queue. Post it with a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// The tag for [`Endpoint::on_sent`](crate::Endpoint::on_sent). The highest bit is never set.
    pub id: u64,
    /// Operation.
    pub op: Op,
    /// Source of the bytes.
    pub payload: Payload,
}

impl Post {
    /// The tag of data that the device has taken: its completion frees only its place in the queue.
    pub const TAKEN: u64 = 0;

    /// The length of its data, if a device may take them before it sends them.
    pub fn takeable(&self) -> Option<u32> {
        match (self.op, Work::of_id(self.id)) {
            (Op::WriteWithImmediate(..), Some(Work::Data(length))) => Some(length),
            _ => None,
        }
    }
}

/// The operation of a [`Post`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// RDMA write.
    Write(Remote),
    /// RDMA write with this immediate data.
    WriteWithImmediate(Remote, u32),
    /// Send.
    Send,
}

/// The bytes of a [`Post`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None.
    Empty,
    /// Data of the program. The owner copies it to these pieces of the send buffer first.
    Data(Pieces),
    /// Data of the program, to be sent inline: this many bytes.
    InlineData(u32),
    /// The first `length` of `bytes`: inline, or through `place` if there is one.
    Bytes {
        /// The bytes.
        bytes: [u8; 24],
        /// The number of valid bytes.
        length: u8,
        /// Offset in the send buffer's memory, for a device without inline data.
        place: Option<u32>,
    },
}

impl Payload {
    /// Data of the program: pieces of the send buffer, or `length` inline bytes.
    pub(crate) fn of(length: u32, pieces: Option<Pieces>) -> Self {
        pieces.map_or(Self::InlineData(length), Self::Data)
    }
}

/// The memory of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ring {
    /// The buffer that the stream begins with.
    #[default]
    First,
    /// The larger one, which replaces it.
    Grown,
}

/// One or two ranges of a ring buffer. The second one starts at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// The buffer.
    pub ring: Ring,
    /// Offset of the first range.
    pub start: u32,
    /// Bytes of the first range.
    pub first: u32,
    /// Bytes of the second range.
    pub second: u32,
}

impl Pieces {
    /// `length` bytes from `start` on, of a ring of `size` bytes.
    pub(crate) fn of_ring(ring: Ring, start: u32, length: u32, size: u32) -> Self {
        let first = length.min(size - start);
        Self {
            ring,
            start,
            first,
            second: length - first,
        }
    }

    /// Bytes of both ranges.
    pub fn length(self) -> u32 {
        self.first + self.second
    }

    /// Both ranges as offset and length, without empty ones.
    pub fn ranges(self) -> impl Iterator<Item = (u32, u32)> {
        [(self.start, self.first), (0, self.second)]
            .into_iter()
            .filter(|(_, length)| *length > 0)
    }
}

/// The meaning of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Data, of this many bytes of the send buffer.
    Data(u32),
    /// The message of four bytes after data.
    DataMessage,
    /// A control message, or half of one.
    Control,
    /// The control message that ends both directions.
    Disconnect,
}

impl Work {
    pub(crate) fn id(self) -> u64 {
        let (kind, length) = match self {
            Self::Data(length) => (0u64, length),
            Self::DataMessage => (1, 0),
            Self::Control => (2, 0),
            Self::Disconnect => (3, 0),
        };
        kind << 32 | u64::from(length)
    }

    pub(crate) fn of_id(id: u64) -> Option<Self> {
        Some(match id >> 32 {
            0 => Self::Data(id as u32),
            1 => Self::DataMessage,
            2 => Self::Control,
            3 => Self::Disconnect,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_work_request_tells_its_kind() {
        for work in [
            Work::Data(77),
            Work::DataMessage,
            Work::Control,
            Work::Disconnect,
        ] {
            assert_eq!(Work::of_id(work.id()), Some(work));
        }
        assert_eq!(Work::of_id(1 << 63), None);
        assert_eq!(Work::of_id(Post::TAKEN), Some(Work::Data(0)));
    }

    #[test]
    fn a_piece_that_passes_the_end_of_the_ring_continues_at_its_start() {
        let of_ring = |start, length| Pieces::of_ring(Ring::First, start, length, 100);
        let pieces = of_ring(90, 25);
        assert!(pieces.ranges().eq([(90, 10), (0, 15)]));
        assert!(of_ring(90, 10).ranges().eq([(90, 10)]));
        assert_eq!(pieces.length(), 25);
    }
}
