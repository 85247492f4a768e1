//! What one side of a connection sends, and what it is ready to receive.

use std::time::Duration;

use super::Class;
use crate::simulator::rng::Rng;

/// Limit on the bytes of all messages of one side.
const WORKLOAD_BYTES_MAX: u64 = 160 << 10;

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Kind {
    Send,
    Write,
    Read,
}

/// A deliberate error in a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Flaw {
    /// The local key is unknown.
    LocalKey,
    /// The remote key is unknown.
    RemoteKey,
    /// Its range ends outside of the peer's region.
    RemoteRange,
    /// The peer's region does not permit the operation.
    RemoteRight,
    /// It is longer than any receive of the peer.
    TooLong,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::simulator) struct OpPlan {
    pub(in crate::simulator) kind: Kind,
    pub(in crate::simulator) len: u32,
    pub(in crate::simulator) immediate: Option<u32>,
    pub(in crate::simulator) is_signaled: bool,
    pub(in crate::simulator) is_fenced: bool,
    pub(in crate::simulator) is_solicited: bool,
    pub(in crate::simulator) is_inline: bool,
    /// Number of memory pieces to gather from or scatter to.
    pub(in crate::simulator) pieces: u32,
    pub(in crate::simulator) flaw: Option<Flaw>,
    /// Time since the previous request was posted.
    pub(in crate::simulator) pause: Duration,
}

/// One side's part of a conversation.
#[derive(Clone, Debug)]
pub(in crate::simulator) struct WorkloadPlan {
    pub(in crate::simulator) ops: Vec<OpPlan>,
    /// Receives posted for the peer's messages.
    pub(in crate::simulator) receives: usize,
    /// Bytes of each.
    pub(in crate::simulator) receive_len: u32,
    /// Memory pieces of each.
    pub(in crate::simulator) receive_pieces: u32,
    /// How many of them are posted before the connection, and the pause between the others.
    pub(in crate::simulator) receives_early: usize,
    pub(in crate::simulator) receive_pause: Duration,
    /// Every send request gives a completion (`sq_sig_all`).
    pub(in crate::simulator) signals_all: bool,
    pub(in crate::simulator) send_depth: u32,
    /// Concurrent reads, as initiator and as responder.
    pub(in crate::simulator) read_depth: u8,
    /// Whether one completion queue serves both queues.
    pub(in crate::simulator) shares_cq: bool,
}

impl OpPlan {
    /// Whether it consumes a receive of the peer.
    pub(in crate::simulator) fn takes_receive(&self) -> bool {
        match self.kind {
            Kind::Send => true,
            Kind::Write => self.immediate.is_some(),
            Kind::Read => false,
        }
    }

    fn draw(rng: &mut Rng, class: Class, bytes_left: u64) -> Self {
        let kind = rng.pick(&[Kind::Send, Kind::Send, Kind::Write, Kind::Read]);
        let longest = match rng.below(100) {
            0..5 => 0,
            5..35 => 64,
            35..80 => 4096,
            80..97 => 20_000,
            _ => 100_000,
        };
        let len = rng.between(0, longest.min(bytes_left)) as u32;
        let has_immediate = kind != Kind::Read && rng.percent(30);
        let long_pause_ms = if class == Class::Chaos { 3000 } else { 200 };
        Self {
            kind,
            len,
            immediate: has_immediate.then(|| rng.next_u32()),
            is_signaled: rng.percent(80),
            is_fenced: rng.percent(10),
            is_solicited: rng.percent(30),
            is_inline: kind != Kind::Read && len <= 128 && rng.percent(40),
            pieces: rng.pick(&[1, 1, 2, 4]),
            flaw: None,
            pause: match rng.below(10) {
                0..6 => Duration::ZERO,
                6..9 => rng.micros(1, 500),
                _ => rng.millis(1, long_pause_ms),
            },
        }
    }
}

impl WorkloadPlan {
    /// The two sides' workloads. `is_sound`: everything in them must succeed.
    pub(super) fn draw_pair(rng: &mut Rng, class: Class, is_sound: bool) -> [Self; 2] {
        let mut pair = [Self::draw(rng, class), Self::draw(rng, class)];
        if !is_sound && rng.percent(40) {
            let side = rng.below(2) as usize;
            spoil(rng, &mut pair[side].ops);
        }
        for side in 0..2 {
            let peers = &pair[1 - side].ops;
            let needed = peers.iter().filter(|op| op.takes_receive()).count();
            let sends = peers.iter().filter(|op| op.kind == Kind::Send);
            let longest = sends
                .filter(|op| op.flaw.is_none())
                .map(|op| op.len)
                .max()
                .unwrap_or(0);
            let own = &mut pair[side];
            own.receive_len = longest;
            own.receives = match !is_sound && rng.percent(15) {
                true => rng.below(needed as u64 + 1) as usize,
                false => needed + rng.below(3) as usize,
            };
            own.receives_early = match rng.below(10) {
                0..6 => own.receives,
                _ => rng.below(own.receives as u64 + 1) as usize,
            };
        }
        pair
    }

    fn draw(rng: &mut Rng, class: Class) -> Self {
        let count = match rng.below(10) {
            0..2 => 0,
            2..8 => rng.between(1, 8),
            _ => rng.between(8, 24),
        };
        let mut bytes_left = WORKLOAD_BYTES_MAX;
        let mut ops = Vec::new();
        for _ in 0..count {
            let op = OpPlan::draw(rng, class, bytes_left);
            bytes_left -= u64::from(op.len);
            ops.push(op);
        }
        // The completion of the last request covers all requests before it.
        if let Some(last) = ops.last_mut() {
            last.is_signaled = true;
        }
        Self {
            ops,
            receives: 0,
            receive_len: 0,
            receive_pieces: rng.pick(&[1, 2, 3]),
            receives_early: 0,
            receive_pause: rng.pick(&[0, 50, 5000, 900_000].map(Duration::from_micros)),
            signals_all: rng.percent(30),
            send_depth: rng.pick(&[1, 2, 8, 64]),
            read_depth: rng.pick(&[1, 2, 4, 16]),
            shares_cq: rng.percent(50),
        }
    }
}

/// Adds an error to one of the requests.
fn spoil(rng: &mut Rng, ops: &mut [OpPlan]) {
    if ops.is_empty() {
        return;
    }
    let at = rng.below(ops.len() as u64) as usize;
    let op = &mut ops[at];
    // An empty access is not checked (IBTA C9-88).
    op.len = op.len.max(1);
    let flaws: &[Flaw] = match op.kind {
        Kind::Send => &[Flaw::LocalKey, Flaw::TooLong],
        _ => &[
            Flaw::LocalKey,
            Flaw::RemoteKey,
            Flaw::RemoteRange,
            Flaw::RemoteRight,
        ],
    };
    let flaw = rng.pick(flaws);
    op.flaw = Some(flaw);
    if flaw == Flaw::LocalKey {
        op.is_inline = false;
    }
    if flaw == Flaw::TooLong {
        op.is_inline = false;
        let longest = ops.iter().map(|op| op.len).max().unwrap_or(0);
        ops[at].len = longest + rng.between(1, 10_000) as u32;
    }
}
