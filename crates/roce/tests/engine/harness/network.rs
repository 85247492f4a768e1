//! The network: it delays packets, and loses, repeats and reorders them as a test asks. One seed is one run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::rocev2::Headers;

use super::parse;

/// A packet's time in flight.
const LATENCY: Duration = Duration::from_micros(50);

/// Random faults, per thousand packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost_permille: u64,
    pub(crate) repeated_permille: u64,
    /// Delayed by up to a millisecond, so that other packets overtake.
    pub(crate) delayed_permille: u64,
}

/// The action of a script on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Pass,
    Drop,
    Repeat,
    Delay(Duration),
}

/// A sent packet, as far as tests need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    pub(crate) from: usize,
    pub(crate) at: Duration,
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) headers: Headers,
    pub(crate) payload_len: usize,
}

type Script = Box<dyn FnMut(&SentPacket) -> Action>;

/// Arrival time, order of sending, destination, and packet.
type Arrival = (Duration, u64, usize, Vec<u8>);

pub(crate) struct Network {
    pub(crate) faults: Faults,
    pub(crate) script: Option<Script>,
    /// Every packet sent, including lost ones.
    pub(crate) log: Vec<SentPacket>,
    rng: Rng,
    under_way: BinaryHeap<Reverse<Arrival>>,
    sent: u64,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            faults: Faults::default(),
            script: None,
            log: Vec::new(),
            rng: Rng::new(seed),
            under_way: BinaryHeap::new(),
            sent: 0,
        }
    }

    pub(crate) fn send(&mut self, now: Duration, from: usize, bytes: Vec<u8>) {
        let packet = parse(&bytes);
        let sent = SentPacket {
            from,
            at: now,
            opcode: packet.bth().opcode,
            psn: packet.bth().psn,
            headers: packet.headers(),
            payload_len: packet.payload().len(),
        };
        self.log.push(sent);
        let action = match &mut self.script {
            Some(script) => script(&sent),
            None => self.fate(),
        };
        let arrival = now + LATENCY;
        match action {
            Action::Pass => self.enqueue(arrival, 1 - from, bytes),
            Action::Drop => {}
            Action::Repeat => {
                self.enqueue(arrival, 1 - from, bytes.clone());
                self.enqueue(arrival + LATENCY, 1 - from, bytes);
            }
            Action::Delay(delay) => self.enqueue(arrival + delay, 1 - from, bytes),
        }
    }

    fn fate(&mut self) -> Action {
        let Faults {
            lost_permille,
            repeated_permille,
            delayed_permille,
        } = self.faults;
        let draw = self.rng.below(1000);
        if draw < lost_permille {
            Action::Drop
        } else if draw < lost_permille + repeated_permille {
            Action::Repeat
        } else if draw < lost_permille + repeated_permille + delayed_permille {
            Action::Delay(Duration::from_micros(self.rng.below(1000)))
        } else {
            Action::Pass
        }
    }

    fn enqueue(&mut self, arrival: Duration, to: usize, bytes: Vec<u8>) {
        self.sent += 1;
        self.under_way
            .push(Reverse((arrival, self.sent, to, bytes)));
    }

    /// A packet that has arrived by `now`, and its destination.
    pub(crate) fn receive(&mut self, now: Duration) -> Option<(usize, Vec<u8>)> {
        if self.next_arrival()? > now {
            return None;
        }
        self.under_way
            .pop()
            .map(|Reverse((_, _, to, bytes))| (to, bytes))
    }

    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.under_way.peek().map(|Reverse((arrival, ..))| *arrival)
    }
}

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
