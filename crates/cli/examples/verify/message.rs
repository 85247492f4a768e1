//! The messages between the two sides: 64 bytes each, in network order.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | [`MAGIC`] |
//! | 4, 5, 6, 7 | kind, operation, initiator, outcome |
//! | 8..12 | bytes of data |
//! | 12..16, 16..24 | remote key and address of the memory at the side that does not execute the operation |
//! | 24..32 | seed of the data; for an atomic the initial value |
//! | 32..40 | operand that an atomic adds or compares; in a verdict the value that it returned or stored |
//! | 40..48 | operand that it swaps in |
//! | 48..56 | offset of an atomic's word in the asked side's memory; in a verdict the first wrong byte |

use portolan::RemoteMemory;

/// Bytes of a message.
pub(super) const MESSAGE_LEN: usize = 64;
/// `Pvfy`
const MAGIC: u32 = 0x5076_6679;
/// The longest message of rdma_rxe.
pub(super) const LENGTH_MAX: u32 = 8 << 20;
/// Bytes of an atomic.
pub(super) const WORD: u32 = 8;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// From the asker: do this.
    Request = 1,
    /// From the asked: the memory is ready.
    Ready = 2,
    /// From the asker: the operation has ended.
    Done = 3,
    /// From the asked: the findings.
    Verdict = 4,
}

/// An operation on data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[repr(u8)]
pub(super) enum Operation {
    /// Send to a receive
    Send = 1,
    /// RDMA write
    Write = 2,
    /// RDMA read
    Read = 3,
    /// Atomic fetch and add
    FetchAdd = 4,
    /// Atomic compare and swap
    CompareSwap = 5,
}

/// The side that executes the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Initiator {
    /// The side that asks.
    Asker = 1,
    /// The side that is asked.
    Asked = 2,
}

/// The finding of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Outcome {
    /// Everything is right. For an atomic it carries the value, which the asker judges.
    Right = 0,
    /// A byte is wrong.
    WrongData = 1,
    /// A message does not have the announced length.
    WrongLength = 2,
    /// Bytes beside the data were changed.
    WrongNeighbour = 3,
}

/// A message. Its kind and operation determine which fields are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) operation: Operation,
    pub(super) initiator: Initiator,
    pub(super) outcome: Outcome,
    pub(super) length: u32,
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) seed: u64,
    pub(super) operand: u64,
    pub(super) swap: u64,
    pub(super) offset: u64,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
        }
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Send,
            2 => Self::Write,
            3 => Self::Read,
            4 => Self::FetchAdd,
            5 => Self::CompareSwap,
            _ => return None,
        })
    }
}

impl Message {
    /// The memory that it describes.
    pub(super) fn memory(&self) -> RemoteMemory {
        RemoteMemory::new(self.addr, u64::from(self.length), self.rkey)
    }

    /// The same message with this memory.
    pub(super) fn with_memory(mut self, memory: RemoteMemory) -> Self {
        (self.addr, self.rkey) = (memory.addr, memory.rkey);
        self
    }

    pub(super) fn to_bytes(self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.operation as u8;
        bytes[6] = self.initiator as u8;
        bytes[7] = self.outcome as u8;
        bytes[8..12].copy_from_slice(&self.length.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.rkey.to_be_bytes());
        let words = [self.addr, self.seed, self.operand, self.swap, self.offset];
        for (place, word) in bytes[16..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Parses a peer's message; `None` if it is malformed or asks for something impossible.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, words) = bytes.first_chunk::<MESSAGE_LEN>()?.split_at(16);
        let short = |at: usize| {
            let part = head.get(at..)?.first_chunk()?;
            Some(u32::from_be_bytes(*part))
        };
        let long = |number: usize| {
            let part = words.get(number * 8..)?.first_chunk()?;
            Some(u64::from_be_bytes(*part))
        };
        if short(0)? != MAGIC {
            return None;
        }
        let message = Self {
            kind: match head[4] {
                1 => Kind::Request,
                2 => Kind::Ready,
                3 => Kind::Done,
                4 => Kind::Verdict,
                _ => return None,
            },
            operation: Operation::from_byte(head[5])?,
            initiator: match head[6] {
                1 => Initiator::Asker,
                2 => Initiator::Asked,
                _ => return None,
            },
            outcome: match head[7] {
                0 => Outcome::Right,
                1 => Outcome::WrongData,
                2 => Outcome::WrongLength,
                3 => Outcome::WrongNeighbour,
                _ => return None,
            },
            length: short(8)?,
            rkey: short(12)?,
            addr: long(0)?,
            seed: long(1)?,
            operand: long(2)?,
            swap: long(3)?,
            offset: long(4)?,
        };
        message.is_possible().then_some(message)
    }

    fn is_possible(&self) -> bool {
        let last_word = u64::from(LENGTH_MAX - WORD);
        let is_request = self.kind == Kind::Request;
        match self.operation.is_atomic() {
            true if is_request
                && (!self.offset.is_multiple_of(u64::from(WORD)) || self.offset > last_word) =>
            {
                false
            }
            true => self.length == WORD,
            false => (1..=LENGTH_MAX).contains(&self.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEST: Message = Message {
        kind: Kind::Request,
        operation: Operation::Write,
        initiator: Initiator::Asked,
        outcome: Outcome::Right,
        length: LENGTH_MAX,
        rkey: 1,
        addr: 2,
        seed: 3,
        operand: 4,
        swap: 5,
        offset: 6,
    };

    #[test]
    fn a_message_reads_back_as_it_was_written() {
        let verdict = Message {
            kind: Kind::Verdict,
            operation: Operation::CompareSwap,
            initiator: Initiator::Asker,
            outcome: Outcome::WrongNeighbour,
            length: 8,
            ..REQUEST
        };
        for message in [REQUEST, verdict] {
            assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
        }
        assert_eq!(Message::from_bytes(&REQUEST.to_bytes()[..63]), None);
    }

    #[test]
    fn an_impossible_request_is_refused() {
        let atomic = Message {
            operation: Operation::FetchAdd,
            length: 8,
            offset: 8,
            ..REQUEST
        };
        assert!(Message::from_bytes(&atomic.to_bytes()).is_some());
        let (length, offset) = (
            |length| Message { length, ..atomic },
            |offset| Message { offset, ..atomic },
        );
        for wrong in [
            length(7),
            offset(9),
            offset(u64::from(LENGTH_MAX)),
            offset(u64::MAX),
            Message {
                length: 0,
                ..REQUEST
            },
            Message {
                length: LENGTH_MAX + 1,
                ..REQUEST
            },
        ] {
            assert_eq!(Message::from_bytes(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = bytes;
            let _ = Message::from_bytes(&bytes);
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            if let Some(message) = Message::from_bytes(&bytes) {
                prop_assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
            }
        }
    }
}
