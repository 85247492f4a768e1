//! A value for each process, recreated after a fork.
//!
//! Threads do not survive fork(2), and a lock that another thread held stays locked in the child. So the cell has no
//! lock, and the child never touches the parent's value.

#![allow(
    unsafe_code,
    reason = "a pointer shared by threads, and a fork handler"
)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Number of forks between this process and its ancestor, counted in the child.
static FORKS: AtomicU32 = AtomicU32::new(0);
static FORK_HANDLER_SET: AtomicBool = AtomicBool::new(false);

/// Identifies a process. The process id alone is ambiguous, because a child in a new pid namespace may have its
/// parent's. The fork count alone is too, because a raw clone(2) runs no handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessKey {
    pid: u32,
    forks: u32,
}

impl ProcessKey {
    /// The key of the calling process.
    pub(crate) fn current() -> Self {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        if !FORK_HANDLER_SET.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler only adds to an atomic, which is allowed after fork, and this library is never
            // unloaded. If it fails (no memory), the process id still distinguishes processes.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
        Self {
            pid: std::process::id(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }
}

/// A value that each process creates at first use. Values are never dropped.
#[derive(Debug)]
pub struct ProcessCell<T: 'static> {
    current: AtomicPtr<(ProcessKey, T)>,
}

impl<T: Send + Sync> Default for ProcessCell<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync> ProcessCell<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// This process's value, created by `make` if there is none. If two threads create it at once, one value is kept
    /// and the other dropped.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn get_or_try_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&'static T, E> {
        let key = ProcessKey::current();
        let mut seen = self.current.load(Ordering::Acquire);
        if let Some(value) = of_process(seen, key) {
            return Ok(value);
        }
        let made = Box::into_raw(Box::new((key, make()?)));
        loop {
            match self
                .current
                .compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break,
                Err(other) => seen = other,
            }
            if let Some(value) = of_process(seen, key) {
                // SAFETY: `made` came from Box::into_raw above and was never shared.
                drop(unsafe { Box::from_raw(made) });
                return Ok(value);
            }
        }
        // SAFETY: `made` came from Box::into_raw and, being published, is never freed.
        Ok(unsafe { &(*made).1 })
    }
}

fn of_process<T: Send + Sync>(entry: *mut (ProcessKey, T), key: ProcessKey) -> Option<&'static T> {
    // SAFETY: the pointer is null, or `get_or_try_make` published it with release order from a Box that is never freed.
    let entry: &'static (ProcessKey, T) = unsafe { entry.as_ref() }?;
    (entry.0 == key).then_some(&entry.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_made_once_and_an_error_makes_none() {
        static CELL: ProcessCell<u32> = ProcessCell::new();
        assert_eq!(CELL.get_or_try_make(|| Err("no")), Err("no"));
        assert_eq!(CELL.get_or_try_make(|| Ok::<_, ()>(7)), Ok(&7));
        assert_eq!(CELL.get_or_try_make(|| Ok::<_, ()>(8)), Ok(&7));
    }

    #[test]
    fn threads_that_race_agree_on_one_value() {
        static CELL: ProcessCell<usize> = ProcessCell::new();
        let make = |n| {
            CELL.get_or_try_make(|| Ok::<_, ()>(n))
                .copied()
                .expect("made")
        };
        let seen: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|n| scope.spawn(move || make(n))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    }
}
