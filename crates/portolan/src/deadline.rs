//! Deadlines: moments made of the time a caller is willing to wait.

use std::time::{Duration, Instant};

/// Longer waits are cut to this: no caller waits so long, and every clock can still add it.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment when `timeout` will be over.
pub(crate) fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

/// The time until `deadline`; zero once it is over.
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
