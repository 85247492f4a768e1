//! Whether the process exits and ends its streams, while its other threads may still use them. They hear of no error or end, which
//! would not be the peer's: what they write is lost, and their reads wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an exiting process waits for the delivery of sent data.
pub(crate) const DELIVERY_WAIT: Duration = Duration::from_secs(5);

static EXITING: AtomicBool = AtomicBool::new(false);

/// The process ends its streams from now on.
pub(crate) fn begin() {
    EXITING.store(true, Ordering::Release);
}

/// In a forked child, which does not exit.
pub(crate) fn forget() {
    EXITING.store(false, Ordering::Release);
}

pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}
