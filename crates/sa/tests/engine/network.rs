//! A network on a virtual clock between an engine and an administrator. A seed decides which
//! datagrams it loses, duplicates and reorders.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use portolan_sa::MadAddress;
use portolan_sa::engine::{Answer, Config, Engine, Failure, QueryId};
use portolan_sa::transport::Mad;

use crate::administrator::Administrator;

pub(crate) const SA: MadAddress = MadAddress::gsi(7, 0, 0);
/// A byte in the upper half of a datagram's transaction id, and the agent's number stored in it.
const AGENT_AT: usize = 9;
const AGENT: u8 = 0x77;
/// Number of steps after which a run counts as endless.
const TURNS_MAX: usize = 3_000_000;

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// The faults of the network.
pub(crate) enum Faults {
    /// Random loss, duplication and delay: percent, percent, and maximum microseconds.
    Random {
        loss: u64,
        repeat: u64,
        jitter_us: u64,
        random: Random,
    },
    /// Loses the datagram with this number in sending order.
    LoseOne(usize),
    /// Swaps the datagram with this number with the next one.
    SwapOne(usize),
    None,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Engine,
    Administrator,
}

pub(crate) struct Network {
    pub(crate) now: Duration,
    pub(crate) engine: Engine,
    pub(crate) administrator: Administrator,
    pub(crate) faults: Faults,
    pub(crate) outcomes: VecDeque<(QueryId, Result<Answer, Failure>)>,
    flying: BTreeMap<(Duration, u64), (To, Box<Mad>)>,
    sent: usize,
}

impl Network {
    pub(crate) fn new(
        config: Config,
        seed: u8,
        administrator: Administrator,
        faults: Faults,
    ) -> Self {
        let mut engine = Engine::new(config, [seed; 32]);
        engine.set_target(Duration::ZERO, Some(SA));
        Self {
            now: Duration::from_secs(1),
            engine,
            administrator,
            faults,
            outcomes: VecDeque::new(),
            flying: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Number of datagrams sent so far.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// Runs until no query is in progress.
    pub(crate) fn run(&mut self) {
        for _ in 0..TURNS_MAX {
            self.drain();
            if self.engine.is_empty() {
                return;
            }
            let next = [
                self.flying.first_key_value().map(|((at, _), _)| *at),
                self.engine.poll_timeout(),
                self.administrator.timeout(),
            ];
            let next = next.into_iter().flatten().min();
            self.now = self.now.max(next.expect("a query has a deadline"));
            self.turn();
        }
        panic!("the run does not end");
    }

    fn turn(&mut self) {
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, mad) = entry.remove();
            match to {
                To::Engine => self.engine.handle_mad(self.now, &SA, mad.as_slice()),
                To::Administrator => {
                    let answers = self.administrator.handle(self.now, &mad);
                    self.send_all(To::Engine, answers);
                }
            }
            self.drain();
        }
        let answers = self.administrator.handle_timeout(self.now);
        self.send_all(To::Engine, answers);
        self.engine.handle_timeout(self.now);
    }

    fn drain(&mut self) {
        while let Some(transmit) = self.engine.poll_transmit() {
            assert_eq!(transmit.to, SA);
            let mut mad = *transmit.mad;
            // User MAD devices put the agent's number into the upper half of the transaction id.
            mad[AGENT_AT] |= AGENT;
            self.send_all(To::Administrator, [mad]);
        }
        while let Some(outcome) = self.engine.poll_outcome() {
            self.outcomes.push_back(outcome);
        }
    }

    fn send_all(&mut self, to: To, mads: impl IntoIterator<Item = Mad>) {
        for mad in mads {
            let number = self.sent;
            self.sent += 1;
            let latency = Duration::from_micros(100);
            match &mut self.faults {
                Faults::None => self.fly(to, latency, mad),
                Faults::LoseOne(lost) if *lost == number => {}
                Faults::SwapOne(late) if *late == number => {
                    self.fly(to, latency + Duration::from_micros(250), mad);
                }
                Faults::LoseOne(_) | Faults::SwapOne(_) => self.fly(to, latency, mad),
                Faults::Random {
                    loss,
                    repeat,
                    jitter_us,
                    random,
                } => {
                    let mut copies = Vec::new();
                    if random.below(100) >= *loss {
                        copies.push(random.below(*jitter_us + 1));
                        if random.below(100) < *repeat {
                            copies.push(random.below(*jitter_us + 1));
                        }
                    }
                    for delay in copies {
                        self.fly(to, latency + Duration::from_micros(delay), mad);
                    }
                }
            }
        }
    }

    fn fly(&mut self, to: To, delay: Duration, mad: Mad) {
        let key = (
            self.now + delay,
            self.sent as u64 * 4 + self.flying.len() as u64 % 4,
        );
        let mut key = key;
        while self.flying.contains_key(&key) {
            key.1 += 1;
        }
        self.flying.insert(key, (to, Box::new(mad)));
    }
}
