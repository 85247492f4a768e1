//! The plan of an exchange.

use std::time::Duration;

use portolan_provider::verbs::{Mtu, QpType};
use portolan_roce::engine::FlowConfig;
use portolan_wire::Psn;

use crate::simulator::network::Faults;
use crate::simulator::plan::{Class, draw_faults, draw_flow, draw_psn};
use crate::simulator::rng::Rng;

/// Number of words for atomic operations.
pub(super) const WORDS: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) class: Class,
    pub(super) faults: Faults,
    pub(super) flow: FlowConfig,
    pub(super) mtu: Mtu,
    pub(super) clients: Vec<ClientPlan>,
    /// Receives of the shared queue, and how many of them are posted before the start.
    pub(super) receives: usize,
    pub(super) receives_early: usize,
    pub(super) receive_pause: Duration,
    /// The shared queue's limit; 0 for none.
    pub(super) srq_limit: u32,
    pub(super) rnr_retry: u8,
    /// The server's queue pair that fails (by its client), and when.
    pub(super) failure: Option<(usize, Duration)>,
}

/// A client of the server.
#[derive(Clone, Debug)]
pub(super) struct ClientPlan {
    pub(super) qp_type: QpType,
    pub(super) ops: Vec<OpPlan>,
    /// First PSNs of the client and of the server.
    pub(super) psns: [Psn; 2],
    /// Atomics that may be outstanding.
    pub(super) depth: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OpPlan {
    pub(super) kind: OpKind,
    /// Time since the previous request was posted.
    pub(super) pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    /// A message, or a datagram to the group.
    Message { len: u32 },
    /// Adds to a word.
    FetchAdd { word: usize },
    /// Compares a word with its value at the time of posting or with another value, and swaps.
    CompareSwap { word: usize, is_current: bool },
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng, class: Class) -> Self {
        let mtu = rng.pick(&[Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024]);
        let count = rng.between(2, 4);
        let clients: Vec<_> = (0..count).map(|_| ClientPlan::draw(rng, mtu)).collect();
        // Enough for every message to arrive twice, plus one receive that each queue pair holds for
        // a message whose rest was lost. A datagram to the group arrives once for each member: the
        // server's end receives all copies.
        let members = clients.iter().filter(|client| client.qp_type == QpType::Ud);
        let members = members.count();
        let taken = clients.iter().map(|client| match client.qp_type {
            QpType::Ud => client.messages() * 2 * members,
            _ => client.messages() * 2,
        });
        let enough = taken.sum::<usize>() + clients.len();
        let is_scarce = class == Class::Chaos && rng.percent(30);
        let receives = if is_scarce { enough / 4 } else { enough };
        let is_late = rng.percent(40);
        let failing = rng.below(count) as usize;
        let fails = class == Class::Chaos && rng.percent(30);
        Self {
            class,
            faults: draw_faults(rng, class),
            flow: draw_flow(rng),
            mtu,
            receives,
            receives_early: if is_late { receives / 4 } else { receives },
            receive_pause: rng.pick(&[50, 2000, 20_000].map(Duration::from_micros)),
            srq_limit: rng.below(receives as u64 / 2 + 1) as u32,
            // Retry without limit only if receives suffice.
            rnr_retry: if is_scarce {
                rng.between(0, 6) as u8
            } else {
                7
            },
            failure: fails.then(|| (failing, rng.millis(0, 200))),
            clients,
        }
    }

    /// Whether every message must arrive, also those of unreliable queue pairs.
    pub(super) fn delivers_all(&self) -> bool {
        self.class == Class::Calm && self.receives_early == self.receives
    }
}

impl ClientPlan {
    fn messages(&self) -> usize {
        let ops = self.ops.iter();
        ops.filter(|op| matches!(op.kind, OpKind::Message { .. }))
            .count()
    }

    fn draw(rng: &mut Rng, mtu: Mtu) -> Self {
        let qp_type = rng.pick(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
        let count = rng.between(1, 10);
        let op = |rng: &mut Rng| OpPlan {
            kind: OpKind::draw(rng, qp_type, mtu),
            pause: match rng.percent(40) {
                true => rng.micros(1, 30_000),
                false => Duration::ZERO,
            },
        };
        Self {
            qp_type,
            ops: (0..count).map(|_| op(rng)).collect(),
            psns: [draw_psn(rng), draw_psn(rng)],
            depth: rng.pick(&[1, 2, 4]),
        }
    }
}

impl OpKind {
    fn draw(rng: &mut Rng, qp_type: QpType, mtu: Mtu) -> Self {
        let word = rng.below(WORDS as u64) as usize;
        let mtu = mtu.bytes() as u64;
        match qp_type {
            QpType::Rc if rng.percent(35) => Self::FetchAdd { word },
            QpType::Rc if rng.percent(30) => Self::CompareSwap {
                word,
                is_current: rng.percent(70),
            },
            QpType::Ud => Self::Message {
                len: rng.between(0, mtu) as u32,
            },
            _ => Self::Message {
                len: rng.between(0, mtu * 3) as u32,
            },
        }
    }
}
