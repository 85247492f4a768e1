//! One value per process, noticed to be missing after a fork.
//!
//! A thread does not survive fork(2), and a lock that another thread held stays locked in the child. So the cell has no lock,
//! and what an ancestor made is not touched in the child.

#![allow(unsafe_code, reason = "a pointer shared by threads")]

use std::convert::Infallible;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork::ForkGuard;

/// A value that each process makes for itself, at first use. Values are never dropped.
#[derive(Debug)]
pub struct ProcessCell<T: 'static> {
    current: AtomicPtr<(ForkGuard, T)>,
}

impl<T: Send + Sync> Default for ProcessCell<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync> ProcessCell<T> {
    /// A cell with nothing in it.
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// This process's value; made by `make` if there is none. Of two threads that make it at once, one's is kept and the
    /// other's is dropped.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        let Ok(value) = self.get_or_try_make(|| Ok::<_, Infallible>(make()));
        value
    }

    /// As [`get_or_make`](Self::get_or_make), for what may fail.
    ///
    /// # Errors
    /// That of `make`.
    pub fn get_or_try_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&'static T, E> {
        match self.latest() {
            Some((guard, value)) if guard.is_owner() => Ok(value),
            _ => Ok(self.put(make()?)),
        }
    }

    /// As [`get_or_make`](Self::get_or_make), where `make` is given what the nearest ancestor had. Locks in that may stay
    /// locked for ever.
    pub fn get_or_inherit(&self, make: impl FnOnce(Option<&T>) -> T) -> &'static T {
        match self.latest() {
            Some((guard, value)) if guard.is_owner() => value,
            of_ancestor => self.put(make(of_ancestor.map(|(_, value)| value))),
        }
    }

    /// The value that was made last: this process's or an ancestor's.
    fn latest(&self) -> Option<&'static (ForkGuard, T)> {
        // SAFETY: the pointer is null or was published by `put`, with release order, from a box that is never freed.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// Puts a value in the place of an ancestor's, unless another thread of this process was faster; the one that stays.
    fn put(&self, value: T) -> &'static T {
        let made = Box::into_raw(Box::new((ForkGuard::new(), value)));
        loop {
            let seen = self.current.load(Ordering::Acquire);
            // SAFETY: as in `latest`.
            if let Some((guard, value)) = unsafe { seen.as_ref() }
                && guard.is_owner()
            {
                // SAFETY: `made` came from `Box::into_raw` above and was never shared.
                drop(unsafe { Box::from_raw(made) });
                return value;
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            let put = self.current.compare_exchange(seen, made, success, failure);
            if put.is_ok() {
                // SAFETY: `made` came from `Box::into_raw` and, being published, is never freed.
                return unsafe { &(*made).1 };
            }
        }
    }
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
        assert_eq!(CELL.get_or_inherit(|_| 9), &7);
    }

    #[test]
    fn threads_that_race_agree_on_one_value() {
        static CELL: ProcessCell<usize> = ProcessCell::new();
        let seen: Vec<_> = std::thread::scope(|scope| {
            let get = |n| *CELL.get_or_make(|| n);
            let threads: Vec<_> = (0..16).map(|n| scope.spawn(move || get(n))).collect();
            let values = threads.into_iter().map(|thread| thread.join());
            values.map(|value| value.expect("no panic")).collect()
        });
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    }

    #[test]
    fn each_generation_of_processes_is_distinguished_and_has_its_own_values() {
        static CELL: ProcessCell<u32> = ProcessCell::new();
        let next = || *CELL.get_or_inherit(|of_ancestor| of_ancestor.map_or(1, |value| value + 1));
        let first = ForkGuard::new();
        assert_eq!(next(), 1);
        assert!(in_a_child(|| {
            let child = ForkGuard::new();
            let is_told = !first.is_owner() && child.is_owner() && next() == 2;
            is_told && in_a_child(|| !first.is_owner() && !child.is_owner() && next() == 3)
        }));
        assert!(first.is_owner());
        assert_eq!(next(), 1);
    }

    /// Whether `check` holds in a forked child.
    fn in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child touches atomics and memory of its own, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let code = i32::from(!check());
            // SAFETY: ends the child at once, running nothing of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    }
}
