//! What the engine counts.

use core::ops::{Index, IndexMut};

use portolan_wire::cm::AttributeId;

/// Messages by kind: from REQ to APR, as IBTA numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByMessage([u64; 11]);

impl ByMessage {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Index<AttributeId> for ByMessage {
    type Output = u64;

    fn index(&self, kind: AttributeId) -> &u64 {
        &self.0[place(kind)]
    }
}

impl IndexMut<AttributeId> for ByMessage {
    fn index_mut(&mut self, kind: AttributeId) -> &mut u64 {
        &mut self.0[place(kind)]
    }
}

/// The ids are the eleven numbers from 0x10 on, which the type guarantees.
const fn place(kind: AttributeId) -> usize {
    kind as usize - AttributeId::Req as usize
}

/// Why a message was dropped, or something was not said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DropReason {
    /// It is not a well-formed message of the connection manager.
    Malformed,
    /// A kind of message that this engine does not speak (alternate paths).
    Unsupported,
    /// Its communication ids are of no connection here, or of one with another host.
    UnknownId,
    /// The state of its id has no use for it: late, early or repeated.
    Unexpected,
    /// It contradicts the connection, such as a DREQ for another queue pair.
    Mismatch,
    /// The listener's backlog is full.
    BacklogFull,
    /// The half-open connections are too many, and all too young to be displaced.
    HalfOpenFull,
    /// A half-open connection that a new request displaced.
    Displaced,
    /// No id is free for a connection request.
    IdsFull,
    /// The queue of events is full.
    EventsFull,
    /// The queue of messages to send is full.
    TransmitsFull,
    /// An event of a child that was not accepted yet, which has no owner to tell.
    NoOwner,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::Malformed,
        Self::Unsupported,
        Self::UnknownId,
        Self::Unexpected,
        Self::Mismatch,
        Self::BacklogFull,
        Self::HalfOpenFull,
        Self::Displaced,
        Self::IdsFull,
        Self::EventsFull,
        Self::TransmitsFull,
        Self::NoOwner,
    ];

    /// Its name, in the style of counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::UnknownId => "unknown_id",
            Self::Unexpected => "unexpected",
            Self::Mismatch => "mismatch",
            Self::BacklogFull => "backlog_full",
            Self::HalfOpenFull => "half_open_full",
            Self::Displaced => "displaced",
            Self::IdsFull => "ids_full",
            Self::EventsFull => "events_full",
            Self::TransmitsFull => "transmits_full",
            Self::NoOwner => "no_owner",
        }
    }
}

/// Counters of an engine, from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages sent, repetitions included.
    pub sent: ByMessage,
    /// Messages sent again because no answer came.
    pub retried: ByMessage,
    /// Well-formed messages received.
    pub received: ByMessage,
    /// Received copies of messages that had been received before.
    pub duplicates: ByMessage,
    dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// How often something was dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}
