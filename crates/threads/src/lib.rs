//! Threads that the library starts inside a host program: their signal mask, their cancellation,
//! locks that survive a panic, how long they poll, and what a fork means.

pub mod biased;
mod cancel;
mod fence;
pub mod fork;
pub mod lock;
mod process_cell;
pub mod spin;
mod sys;
mod this_thread;

use std::num::NonZeroUsize;

use once_cell::race::OnceNonZeroUsize;

pub use cancel::uncancelled;
pub use fence::{fence, fence_after_exchange};
pub use process_cell::ProcessCell;
pub use sys::with_signals_blocked;

/// Number of processors that this process may use; 1 if unknown. Cached, because determining it
/// reads half a dozen files.
pub fn processors() -> usize {
    // Not one that a child would wait for if another thread was determining it at the fork.
    static PROCESSORS: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let determine = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    PROCESSORS.get_or_init(determine).get()
}
