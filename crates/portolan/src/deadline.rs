//! Deadlines: the time at which a timeout ends.

use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Step};

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

/// The error of a call that does not start because its deadline has passed.
pub(crate) fn passed(step: Step) -> Error {
    let (after_ms, retries) = (0, 0);
    Error::new(step, Cause::TimedOut { after_ms, retries })
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
