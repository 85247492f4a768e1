//! Counters of a queue pair.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

use portolan_provider::verbs::Counter;

/// Names of all counters except drops, in the order of the fields.
const FIELD_NAMES: [&str; 11] = [
    "tx_packets",
    "tx_bytes",
    "rx_packets",
    "rx_bytes",
    "retransmits",
    "timeouts",
    "tx_naks",
    "rx_naks",
    "tx_rnr_naks",
    "rx_rnr_naks",
    "duplicates",
];

/// Counters of a queue pair since its creation. They wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets sent, including retransmissions.
    pub packets_sent: u64,
    /// Payload bytes of these packets.
    pub bytes_sent: u64,
    /// Packets received, including dropped ones.
    pub packets_received: u64,
    /// Payload bytes of these packets.
    pub bytes_received: u64,
    /// Request packets retransmitted.
    pub retransmits: u64,
    /// Timeouts of the requester.
    pub timeouts: u64,
    /// NAKs sent, except receiver-not-ready.
    pub naks_sent: u64,
    /// NAKs received, except receiver-not-ready.
    pub naks_received: u64,
    /// Receiver-not-ready NAKs sent.
    pub rnr_naks_sent: u64,
    /// Receiver-not-ready NAKs received.
    pub rnr_naks_received: u64,
    /// Requests received again after execution.
    pub duplicates: u64,
    drops: [u64; DropReason::COUNT],
}

impl QpCounters {
    /// Packets dropped for a reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }

    /// Packets dropped for any reason.
    pub fn drops_total(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.fields_mut().into_iter().zip(other.fields()) {
            *mine = mine.wrapping_add(theirs);
        }
        for (mine, theirs) in self.drops.iter_mut().zip(other.drops) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// The counters by name: `tx_` for packets and bytes sent, `rx_` for received, `dropped_` and the reason for drops.
    pub fn named(&self) -> Vec<Counter> {
        let fields = FIELD_NAMES.into_iter().zip(self.fields());
        let fields = fields.map(|(name, value)| (Cow::Borrowed(name), value));
        let drops = DropReason::ALL.into_iter().map(|reason| {
            let name = format!("dropped_{}", reason.name().replace(' ', "_"));
            (Cow::Owned(name), self.drops(reason))
        });
        let counter = |(name, value)| Counter { name, value };
        fields.chain(drops).map(counter).collect()
    }

    fn fields(&self) -> [u64; FIELD_NAMES.len()] {
        let mut copy = *self;
        copy.fields_mut().map(|field| *field)
    }

    /// In the order of [`FIELD_NAMES`].
    fn fields_mut(&mut self) -> [&mut u64; FIELD_NAMES.len()] {
        let Self {
            packets_sent,
            bytes_sent,
            packets_received,
            bytes_received,
            retransmits,
            timeouts,
            naks_sent,
            naks_received,
            rnr_naks_sent,
            rnr_naks_received,
            duplicates,
            drops: _,
        } = self;
        [
            packets_sent,
            bytes_sent,
            packets_received,
            bytes_received,
            retransmits,
            timeouts,
            naks_sent,
            naks_received,
            rnr_naks_sent,
            rnr_naks_received,
            duplicates,
        ]
    }

    pub(super) fn count_drop(&mut self, reason: DropReason) {
        if let Some(count) = self.drops.get_mut(reason as usize) {
            *count = count.wrapping_add(1);
        }
    }
}

/// Why a packet was dropped without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The queue pair's state does not accept it (IBTA 9.6.1: RESET, INIT, ERR).
    State,
    /// The opcode belongs to another transport.
    Transport,
    /// The partition key does not match.
    PKey,
    /// The transport version is not zero.
    Version,
    /// A packet ahead of the expected PSN, after the gap was already reported.
    OutOfSequence,
    /// A duplicate read that the responder resources do not contain.
    StaleRead,
    /// A duplicate atomic that the responder resources do not contain, or that differs from the executed one.
    StaleAtomic,
    /// An acknowledgement of packets that were already acknowledged.
    StaleAck,
    /// An acknowledgement of packets that were never sent (a "ghost").
    GhostAck,
    /// A reserved syndrome, or an invalid opcode or length.
    Malformed,
    /// The Q_Key differs from the queue pair's (UD).
    QKey,
    /// No receive was posted (UC, UD).
    NoReceive,
    /// Longer than its receive, which completed with an error (UC, UD).
    Length,
    /// The key, range or right does not permit the write (UC).
    Access,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Every reason, in the order of its number.
    pub const ALL: [Self; 14] = [
        Self::State,
        Self::Transport,
        Self::PKey,
        Self::Version,
        Self::OutOfSequence,
        Self::StaleRead,
        Self::StaleAtomic,
        Self::StaleAck,
        Self::GhostAck,
        Self::Malformed,
        Self::QKey,
        Self::NoReceive,
        Self::Length,
        Self::Access,
    ];

    /// A short name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::State => "queue pair state",
            Self::Transport => "transport",
            Self::PKey => "partition key",
            Self::Version => "transport version",
            Self::OutOfSequence => "out of sequence",
            Self::StaleRead => "stale read",
            Self::StaleAtomic => "stale atomic",
            Self::StaleAck => "stale acknowledgement",
            Self::GhostAck => "ghost acknowledgement",
            Self::Malformed => "malformed",
            Self::QKey => "Q_Key",
            Self::NoReceive => "no receive posted",
            Self::Length => "longer than the receive",
            Self::Access => "remote access",
        }
    }
}
