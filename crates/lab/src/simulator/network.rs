//! The network: it delays, loses, copies, reorders and corrupts packets, and can be partitioned.

use std::collections::BTreeSet;
use std::time::Duration;

use super::packet::Datagram;
use super::rng::Rng;

/// How bad the network is. Rates are per thousand packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// Minimum and maximum latency of a packet, microseconds. Packets of one direction keep their
    /// order regardless.
    pub(super) latency_us: (u64, u64),
    pub(super) lost_permille: u32,
    /// The packet is sent again, up to `late_us_max` later.
    pub(super) duplicated_permille: u32,
    /// The packet is overtaken: it arrives up to `late_us_max` later.
    pub(super) reordered_permille: u32,
    pub(super) late_us_max: u64,
    pub(super) corrupted_permille: u32,
    /// A loss burst begins, of up to `burst_packets_max` packets.
    pub(super) burst_permille: u32,
    pub(super) burst_packets_max: u64,
}

/// What happens to a packet.
#[derive(Debug, Default)]
pub(super) struct Fate {
    /// The packet and its copy, with their arrival times.
    pub(super) arrivals: [Option<(Duration, Datagram)>; 2],
    /// Description for the trace; empty if nothing happens.
    pub(super) note: &'static str,
}

#[derive(Debug)]
pub(super) struct Network {
    faults: Faults,
    rng: Rng,
    hosts: usize,
    blocked: BTreeSet<(usize, usize)>,
    directions: Vec<Direction>,
}

/// One direction between two hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// Arrival time of the last packet that kept its order.
    last_arrival: Duration,
    /// Packets still to be lost in the current burst.
    burst_left: u64,
}

impl Network {
    pub(super) fn new(hosts: usize, faults: Faults, rng: Rng) -> Self {
        let directions = vec![Direction::default(); hosts * hosts];
        Self {
            faults,
            rng,
            hosts,
            blocked: BTreeSet::new(),
            directions,
        }
    }

    /// Blocks or unblocks one direction.
    pub(super) fn set_blocked(&mut self, from: usize, to: usize, is_blocked: bool) {
        if is_blocked {
            self.blocked.insert((from, to));
        } else {
            self.blocked.remove(&(from, to));
        }
    }

    pub(super) fn send(
        &mut self,
        now: Duration,
        from: usize,
        to: usize,
        mut datagram: Datagram,
    ) -> Fate {
        let (rng, faults) = (&mut self.rng, &self.faults);
        let direction = &mut self.directions[from * self.hosts + to];
        if self.blocked.contains(&(from, to)) {
            return Fate::lost("   ✗ partitioned");
        }
        if direction.burst_left > 0 {
            direction.burst_left -= 1;
            return Fate::lost("   ✗ lost in a burst");
        }
        if rng.permille(faults.burst_permille) {
            direction.burst_left = rng.between(1, faults.burst_packets_max);
        }
        if rng.permille(faults.lost_permille) {
            return Fate::lost("   ✗ lost");
        }
        let arrival = now + rng.micros(faults.latency_us.0, faults.latency_us.1);
        let mut fate = Fate::default();
        if rng.permille(faults.duplicated_permille) {
            let late = arrival + rng.micros(1, faults.late_us_max);
            fate.arrivals[1] = Some((late, datagram.clone()));
            fate.note = "   ⇉ duplicated";
        }
        if rng.permille(faults.corrupted_permille) {
            datagram.corrupt(|bytes| corrupt(rng, bytes));
            fate.note = "   ≁ corrupted";
        }
        if rng.permille(faults.reordered_permille) {
            fate.arrivals[0] = Some((arrival + rng.micros(1, faults.late_us_max), datagram));
            fate.note = "   ↷ delayed";
        } else {
            direction.last_arrival = direction.last_arrival.max(arrival);
            fate.arrivals[0] = Some((direction.last_arrival, datagram));
        }
        fate
    }
}

impl Fate {
    fn lost(note: &'static str) -> Self {
        Self {
            note,
            ..Self::default()
        }
    }
}

/// Flips up to three bits, or some of 32 consecutive ones. A 32-bit CRC surely detects both in a
/// packet of this size, so an undetected one is a defect and not chance.
fn corrupt(rng: &mut Rng, bytes: &mut [u8]) {
    let bits = bytes.len() as u64 * 8;
    let flip = |bytes: &mut [u8], bit: u64| bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    if rng.percent(50) {
        for _ in 0..rng.between(1, 3) {
            let bit = rng.below(bits);
            flip(bytes, bit);
        }
    } else {
        let first = rng.below(bits - 31);
        let pattern = rng.next_u32() | 1;
        (0..32)
            .filter(|at| pattern >> at & 1 == 1)
            .for_each(|at| flip(bytes, first + at));
    }
}
