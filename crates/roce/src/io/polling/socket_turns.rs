//! When a poller reads the sockets, if the process also has rings: a system call takes longer than a look at all rings.

use std::time::Duration;

/// If the sockets are not expected to have packets, they are read only in every n-th poll.
const POLLS: u32 = 64;
/// Polls that must have found packets in rings, and none in sockets, before none are expected in the sockets.
const BY_RINGS: u32 = 16;
/// If a queue pair needs the sockets, they are read at least this often.
const INTERVAL: Duration = Duration::from_micros(50);

#[derive(Debug, Default)]
pub(crate) struct SocketTurns {
    /// Polls since the sockets were read.
    polls: u32,
    /// Polls that have found packets in rings since the sockets had some.
    by_rings: u32,
    /// When a poller last read the sockets for a queue pair that needs them.
    read_at: Duration,
}

impl SocketTurns {
    pub(crate) fn rings_had_packets(&mut self) {
        self.by_rings = self.by_rings.saturating_add(1);
    }

    pub(crate) fn had_packets(&mut self) {
        self.by_rings = 0;
    }

    /// Whether to read the sockets in this poll. If all queue pairs send by rings, a peer may not use its ring yet. If a
    /// queue pair needs the sockets, all its packets may still come by rings: a UD queue pair always needs them.
    pub(crate) fn is_due(&mut self, are_needed: bool, now: Duration) -> bool {
        let is_long_ago = || now.saturating_sub(self.read_at) >= INTERVAL;
        if are_needed && (self.by_rings < BY_RINGS || is_long_ago()) {
            self.read_at = now;
            return true;
        }
        self.polls = (self.polls + 1) % POLLS;
        self.polls == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `polls` polls read the sockets, `gap` apart.
    fn reads(turns: &mut SocketTurns, are_needed: bool, polls: u32, gap: Duration) -> usize {
        let at = |poll| INTERVAL + gap * poll;
        (0..polls)
            .filter(|poll| turns.is_due(are_needed, at(*poll)))
            .count()
    }

    #[test]
    fn each_poll_reads_sockets_that_a_queue_pair_needs_until_packets_come_by_rings_alone() {
        let mut turns = SocketTurns::default();
        assert_eq!(reads(&mut turns, true, 640, Duration::ZERO), 640);
        for _ in 0..BY_RINGS {
            turns.rings_had_packets();
        }
        assert_eq!(reads(&mut turns, true, 640, Duration::ZERO), 10);
        turns.had_packets();
        assert_eq!(reads(&mut turns, true, 640, Duration::ZERO), 640);
    }

    #[test]
    fn rare_polls_read_sockets_that_a_queue_pair_needs() {
        let mut turns = SocketTurns::default();
        for _ in 0..BY_RINGS {
            turns.rings_had_packets();
        }
        assert_eq!(reads(&mut turns, true, 30, INTERVAL), 30);
        assert_eq!(reads(&mut turns, false, 64, INTERVAL), 1);
    }
}
