//! The synchronization primitives of [`poll_handoff`](super::poll_handoff) and [`ring_waiter`](super::ring_waiter). Their model
//! checkers replace them.

pub(super) use portolan_threads::lock::Mutex;
pub(super) use portolan_threads::{fence, fence_after_exchange};
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
