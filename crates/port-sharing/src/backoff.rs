//! The pauses between attempts to become or find the coordinator. Pure.

use std::time::{Duration, Instant};

use super::block::Block;
use super::config::{BACKOFF_MAX, BACKOFF_MIN};

/// The pauses between attempts. They double, and differ between members so that members do not retry in step.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    attempts: u32,
    next_at: Instant,
    salt: u32,
}

impl Backoff {
    /// The first attempt is due now. `block` spreads the members' attempts.
    pub(super) fn start(block: Block, now: Instant) -> Self {
        Self {
            attempts: 0,
            next_at: now,
            salt: u32::from(block.index()),
        }
    }

    /// Whether the next attempt is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_at <= now
    }

    /// When to try next.
    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// How many attempts failed.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The attempt failed. The next one waits for at least `wait`.
    pub(super) fn failed(&mut self, wait: Duration, now: Instant) {
        let pause = pause(self.attempts, self.salt);
        self.attempts = self.attempts.saturating_add(1);
        self.next_at = now + pause.max(wait);
    }
}

/// The pause after `attempts` failures: between half and all of the doubling bound.
pub(super) fn pause(attempts: u32, salt: u32) -> Duration {
    let bound = BACKOFF_MIN
        .saturating_mul(1 << attempts.min(16))
        .min(BACKOFF_MAX);
    // A multiplicative hash (Knuth) of the salt and the attempt.
    let hash = salt
        .wrapping_add(attempts.wrapping_mul(0x85eb_ca6b))
        .wrapping_mul(0x9e37_79b1);
    bound / 2 + bound.mul_f64(f64::from(hash) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_is_at_once() {
        let now = Instant::now();
        assert!(Backoff::start(Block::COORDINATOR, now).is_due(now));
    }

    #[test]
    fn pauses_grow_to_their_bound_and_no_further() {
        for salt in 0..128 {
            for attempts in 0..40 {
                let pause = pause(attempts, salt);
                assert!(pause >= BACKOFF_MIN / 2, "{pause:?}");
                assert!(pause <= BACKOFF_MAX, "{pause:?}");
            }
            assert!(pause(0, salt) <= BACKOFF_MIN);
            assert!(pause(30, salt) >= BACKOFF_MAX / 2);
        }
    }

    #[test]
    fn members_do_not_move_in_step() {
        let mut pauses: Vec<_> = (1..128).map(|salt| pause(6, salt)).collect();
        pauses.sort();
        pauses.dedup();
        assert!(pauses.len() > 100, "{} different pauses", pauses.len());
    }

    #[test]
    fn a_coordinator_may_ask_for_a_longer_wait() {
        let now = Instant::now();
        let mut backoff = Backoff::start(Block::COORDINATOR, now);
        backoff.failed(Duration::from_secs(1), now);
        assert!(!backoff.is_due(now + Duration::from_millis(999)));
        assert_eq!(backoff.next_at(), now + Duration::from_secs(1));
    }
}
