//! Threads that the library starts inside a host program: their signal mask, their cancellation,
//! and locks that survive a panic.

mod cancel;
pub mod fork;
pub mod lock;
mod sys;

use std::sync::OnceLock;

pub use cancel::uncancelled;
pub use sys::with_signals_blocked;

/// Number of processors that this process may use; 1 if unknown. Cached, because determining it
/// reads half a dozen files.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get()))
}
