//! The contents of a run: what happened, and how often.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_provider::cm::EventType;
use portolan_provider::verbs::WcStatus;
use portolan_roce::engine::{DropReason, QpCounters, Queue};
use portolan_wire::cm::CmMessage;
use portolan_wire::rocev2::Packet;

use super::plan::Class;

/// A run that passed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The run.
    pub seed: u64,
    /// The class of the run.
    pub class: Class,
    /// Duration on the run's own clock.
    pub lasted: Duration,
    /// Number of events by name.
    pub tally: BTreeMap<&'static str, u64>,
    /// A hash of every arriving packet and its time. The same seed gives the same hash.
    pub digest: u64,
}

/// Counts events by name.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) digest: u64,
}

impl Tally {
    pub(super) fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(super) fn add(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub(super) fn sent(&mut self, packet: &[u8]) {
        let name = match Packet::parse(packet).map(|packet| packet.mad().map(cm_name)) {
            Ok(Some(Some(name))) => name,
            _ => "data packet",
        };
        self.count(name);
    }

    pub(super) fn event(&mut self, event: EventType) {
        self.count(event.name());
    }

    pub(super) fn completion(&mut self, queue: Queue, status: WcStatus) {
        self.count(match (queue, status) {
            (Queue::Send, WcStatus::Success) => "send success",
            (Queue::Receive, WcStatus::Success) => "receive success",
            (_, WcStatus::LocLenErr) => "LocLenErr",
            (_, WcStatus::LocProtErr) => "LocProtErr",
            (_, WcStatus::WrFlushErr) => "WrFlushErr",
            (_, WcStatus::RemInvReqErr) => "RemInvReqErr",
            (_, WcStatus::RemAccessErr) => "RemAccessErr",
            (_, WcStatus::RetryExcErr) => "RetryExcErr",
            (_, WcStatus::RnrRetryExcErr) => "RnrRetryExcErr",
            _ => "other status",
        });
    }

    /// Adds the counters of a destroyed queue pair.
    pub(super) fn queue_pair(&mut self, counters: &QpCounters) {
        self.add("request sent again", counters.retransmits);
        self.add("timeout", counters.timeouts);
        self.add("NAK", counters.naks_sent);
        self.add("RNR NAK", counters.rnr_naks_sent);
        self.add("duplicate request", counters.duplicates);
        for (reason, name) in [
            (DropReason::State, "dropped: state"),
            (DropReason::OutOfSequence, "dropped: out of sequence"),
            (DropReason::StaleRead, "dropped: stale read"),
            (DropReason::StaleAck, "dropped: stale acknowledgement"),
            (DropReason::GhostAck, "dropped: ghost acknowledgement"),
        ] {
            self.add(name, counters.drops(reason));
        }
    }

    /// Adds the counters of a destroyed datagram queue pair.
    pub(super) fn datagram_slot(&mut self, counters: &QpCounters) {
        for (reason, name) in [
            (DropReason::QKey, "datagram dropped: wrong key"),
            (DropReason::NoReceive, "datagram dropped: no receive"),
        ] {
            self.add(name, counters.drops(reason));
        }
    }

    /// Hashes an arrival into the digest (FNV-1a over words).
    pub(super) fn digest(&mut self, now: Duration, packet: &[u8]) {
        let mut take = |word: u64| {
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        };
        take(now.as_nanos() as u64);
        let tail = packet.last_chunk::<4>().copied().unwrap_or_default();
        take(u64::from(u32::from_le_bytes(tail)) << 32 | packet.len() as u64);
    }
}

/// A management datagram's type for the tally, in a word.
fn cm_name(mad: &[u8]) -> Option<&'static str> {
    Some(match CmMessage::parse(mad).ok()?.1 {
        CmMessage::Req(_) => "REQ",
        CmMessage::Mra(_) => "MRA",
        CmMessage::Rej(_) => "REJ",
        CmMessage::Rep(_) => "REP",
        CmMessage::Rtu(_) => "RTU",
        CmMessage::Dreq(_) => "DREQ",
        CmMessage::Drep(_) => "DREP",
        CmMessage::SidrReq(_) => "SIDR REQ",
        CmMessage::SidrRep(_) => "SIDR REP",
        _ => "other",
    })
}
