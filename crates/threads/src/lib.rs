//! Threads that a library starts in a program which knows nothing of them, and where they may run.

mod sys;

use std::sync::OnceLock;

pub use sys::with_signals_blocked;

/// Processors that this process may use, when it was asked first: that reads half a dozen files. 1 if nobody says.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get()))
}
