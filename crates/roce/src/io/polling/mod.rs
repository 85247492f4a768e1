//! When to look for packets, when to wait, and when to acknowledge: one policy.
//!
//! [`policy`] names the states of the progress thread, which are decided here from times and counts alone. Of queue pairs it
//! knows the numbers.

pub(crate) mod busy_poll;
pub(crate) mod clock;
pub(crate) mod deadlines;
pub(crate) mod noted;
pub(crate) mod policy;
pub(crate) mod poll_handoff;
pub(crate) mod progress;
mod sync;
pub(crate) mod watch_one_sided;
