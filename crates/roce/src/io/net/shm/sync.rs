//! The synchronization primitives of [`cursor`](super::cursor). Its model checker replaces them.

pub(super) use portolan_threads::{fence, fence_after_exchange};
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
