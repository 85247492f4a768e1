//! Threads that a library starts in a program which knows nothing of them.

mod sys;

pub use sys::with_signals_blocked;
