//! Counters of the engine.

use core::ops::{Index, IndexMut};

use portolan_wire::cm::AttributeId;

/// Message counts by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByMessage([u64; AttributeId::ALL.len()]);

impl ByMessage {
    /// The total of all types.
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

/// The ids are consecutive.
const fn place(kind: AttributeId) -> usize {
    kind as usize - AttributeId::ALL[0] as usize
}

const _: () = {
    let mut at = 0;
    while at < AttributeId::ALL.len() {
        assert!(place(AttributeId::ALL[at]) == at);
        at += 1;
    }
};

portolan_provider::enum_table! {
    /// Why a message was dropped or an event was not reported.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub enum DropReason {
        /// It is not a well-formed message of the connection manager.
        Malformed => "malformed",
        /// A message type that this engine does not support (alternate paths).
        Unsupported => "unsupported",
        /// Its communication ids belong to no connection here, or to one with another host.
        UnknownId => "unknown_id",
        /// Its id's state does not allow it: late, early or repeated.
        Unexpected => "unexpected",
        /// It contradicts the connection, such as a DREQ for another queue pair.
        Mismatch => "mismatch",
        /// The listener's backlog is full.
        BacklogFull => "backlog_full",
        /// There are too many half-open connections, and all are too young to displace.
        HalfOpenFull => "half_open_full",
        /// A half-open connection that a new request displaced.
        Displaced => "displaced",
        /// No id is free for a connection request.
        IdsFull => "ids_full",
        /// The queue of events is full.
        EventsFull => "events_full",
        /// The queue of messages to send is full.
        TransmitsFull => "transmits_full",
        /// An event of a child that is not accepted yet and has no owner.
        NoOwner => "no_owner",
    }
}

/// Counters of an engine, from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages sent, including retransmissions.
    pub sent: ByMessage,
    /// Messages retransmitted for lack of an answer.
    pub retried: ByMessage,
    /// Well-formed messages received.
    pub received: ByMessage,
    /// Received duplicates of earlier messages.
    pub duplicates: ByMessage,
    dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Number of drops for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}
