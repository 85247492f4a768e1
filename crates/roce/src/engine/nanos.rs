//! Times as one number.

use core::time::Duration;

/// A time in nanoseconds; saturates after 584 years.
#[inline]
pub(crate) fn as_nanos(time: Duration) -> u64 {
    const SECONDS_MAX: u64 = u64::MAX / 1_000_000_000 - 1;
    match time.as_secs() {
        seconds @ ..=SECONDS_MAX => seconds * 1_000_000_000 + u64::from(time.subsec_nanos()),
        _ => u64::MAX,
    }
}
