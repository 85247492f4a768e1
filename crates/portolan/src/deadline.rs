//! Deadlines: the time at which a timeout ends.

use std::time::{Duration, Instant};

/// Longer timeouts are reduced to this, so that adding them to any clock cannot overflow.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The time at which `timeout` ends.
pub(crate) fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

/// The time left until `deadline`; zero after it.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_timeout_is_a_valid_instant() {
        assert!(left(after(Duration::MAX)) > LONGEST / 2);
        assert_eq!(left(after(Duration::ZERO)), Duration::ZERO);
    }
}
