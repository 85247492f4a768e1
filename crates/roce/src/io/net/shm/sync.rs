//! The synchronization primitives of [`cursor`](super::cursor), which its model checker replaces.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
