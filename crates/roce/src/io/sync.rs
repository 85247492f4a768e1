//! The synchronization primitives of [`turns`](super::turns), which its model checker replaces.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(super) use std::sync::{Mutex, PoisonError};
