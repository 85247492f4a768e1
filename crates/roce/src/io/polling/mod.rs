//! When to poll for packets, and when to wait.
//!
//! [`policy`] names the states of the progress thread. Times and counts decide between them; queue pairs appear only
//! as numbers.

pub(crate) mod attendance;
pub(crate) mod busy_poll;
pub(crate) mod clock;
pub(crate) mod deadlines;
pub(crate) mod last_polls;
pub(crate) mod make_way;
pub(crate) mod noted;
pub(crate) mod policy;
pub(crate) mod poll_handoff;
pub(crate) mod progress;
pub(crate) mod ring_waiter;
pub(crate) mod sleeper_looks;
pub(crate) mod socket_turns;
mod sync;
pub(crate) mod watch_one_sided;
