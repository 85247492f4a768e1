//! Results of datagram pings.

use std::time::Duration;

use crate::latency::Latencies;
use crate::rping::Mismatch;

/// Results of the pings.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) answered: u64,
    /// Answers that are not echoes.
    pub(super) untimed: u64,
    pub(super) mismatched: u64,
    pub(super) duplicates: u64,
    pub(super) latencies: Latencies,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            sent: 0,
            answered: 0,
            untimed: 0,
            mismatched: 0,
            duplicates: 0,
            latencies: Latencies::new(),
        }
    }

    /// Pings that got no answer.
    pub(super) fn lost(&self) -> u64 {
        self.sent - self.answered
    }

    /// Whether the service works: some datagrams may be lost, but not all, and none may be changed.
    pub(super) fn is_good(&self) -> bool {
        (self.answered > 0 || self.sent == 0) && self.mismatched == 0
    }
}

/// The meaning of an answer.
pub(super) enum Answer {
    /// An echo of the data.
    Echo {
        seq: u64,
        time: Duration,
        compared: Result<(), Mismatch>,
    },
    /// An answer that is not an echo, so its ping is unknown.
    Other { bytes: usize },
}
