//! Counters of a queue pair.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

use portolan_provider::verbs::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Counters of a queue pair since its creation. They wrap.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QpCounters {
            $($(#[$doc])* pub $field: u64,)*
            drops: [u64; DropReason::ALL.len()],
        }

        impl QpCounters {
            fn add_fields(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }

            fn named_fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets sent, including retransmissions.
    packets_sent = "tx_packets",
    /// Payload bytes of these packets.
    bytes_sent = "tx_bytes",
    /// Packets received, including dropped ones.
    packets_received = "rx_packets",
    /// Payload bytes of these packets.
    bytes_received = "rx_bytes",
    /// Request packets retransmitted.
    retransmits = "retransmits",
    /// Timeouts of the requester.
    timeouts = "timeouts",
    /// NAKs sent, except receiver-not-ready.
    naks_sent = "tx_naks",
    /// NAKs received, except receiver-not-ready.
    naks_received = "rx_naks",
    /// Receiver-not-ready NAKs sent.
    rnr_naks_sent = "tx_rnr_naks",
    /// Receiver-not-ready NAKs received.
    rnr_naks_received = "rx_rnr_naks",
    /// Requests received again after execution.
    duplicates = "duplicates",
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
        self.add_fields(other);
        for (mine, theirs) in self.drops.iter_mut().zip(other.drops) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// The counters by name: `tx_` for packets and bytes sent, `rx_` for received, `dropped_` and the reason for drops.
    pub fn named(&self) -> Vec<Counter> {
        let fields = self.named_fields();
        let fields = fields.map(|(name, value)| (Cow::Borrowed(name), value));
        let drops = DropReason::ALL.into_iter().map(|reason| {
            let name = format!("dropped_{}", reason.name().replace(' ', "_"));
            (Cow::Owned(name), self.drops(reason))
        });
        let counter = |(name, value)| Counter { name, value };
        fields.chain(drops).map(counter).collect()
    }

    pub(super) fn count_drop(&mut self, reason: DropReason) {
        if let Some(count) = self.drops.get_mut(reason as usize) {
            *count = count.wrapping_add(1);
        }
    }
}

portolan_provider::enum_table! {
    /// Why a packet was dropped without an answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum DropReason {
        /// The queue pair's state does not accept it (IBTA 9.6.1: RESET, INIT, ERR).
        State => "queue pair state",
        /// The opcode belongs to another transport.
        Transport => "transport",
        /// The partition key does not match.
        PKey => "partition key",
        /// The transport version is not zero.
        Version => "transport version",
        /// A packet ahead of the expected PSN, after the gap was already reported.
        OutOfSequence => "out of sequence",
        /// A duplicate read that the responder resources do not contain.
        StaleRead => "stale read",
        /// A duplicate atomic that the responder resources do not contain, or that differs from the executed one.
        StaleAtomic => "stale atomic",
        /// An acknowledgement of packets that were already acknowledged.
        StaleAck => "stale acknowledgement",
        /// An acknowledgement of packets that were never sent (a "ghost").
        GhostAck => "ghost acknowledgement",
        /// A reserved syndrome, or an invalid opcode or length.
        Malformed => "malformed",
        /// The Q_Key differs from the queue pair's (UD).
        QKey => "Q_Key",
        /// No receive was posted (UC, UD).
        NoReceive => "no receive posted",
        /// Longer than its receive, which completed with an error (UC, UD).
        Length => "longer than the receive",
        /// The key, range or right does not permit the write (UC).
        Access => "remote access",
    }
}
