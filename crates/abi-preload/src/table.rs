//! A bounded table of objects by descriptor number, with lock-free reads.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

/// Numbers from here on never have objects: Linux's default limit (`fs.nr_open`).
pub(crate) const NUMBERS_MAX: usize = 1 << 20;

pub(crate) struct Table<T> {
    /// Checked first: most numbers have no object, and then a call costs one load.
    used: [AtomicBool; NUMBERS_MAX],
    slots: [ArcSwapOption<T>; NUMBERS_MAX],
    /// All numbers that have had objects are below.
    end: AtomicUsize,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            used: [const { AtomicBool::new(false) }; NUMBERS_MAX],
            slots: [const { ArcSwapOption::const_empty() }; NUMBERS_MAX],
            end: AtomicUsize::new(0),
        }
    }

    fn at(number: c_int) -> Option<usize> {
        usize::try_from(number).ok().filter(|at| *at < NUMBERS_MAX)
    }

    #[inline]
    pub(crate) fn has(&self, number: c_int) -> bool {
        Self::at(number).is_some_and(|at| self.used[at].load(Ordering::Acquire))
    }

    pub(crate) fn get(&self, number: c_int) -> Option<Arc<T>> {
        match self.has(number) {
            true => self.slots[number as usize].load_full(),
            false => None,
        }
    }

    /// Whether the number is within the table's bounds.
    pub(crate) fn has_room(number: c_int) -> bool {
        Self::at(number).is_some()
    }

    /// Sets a number's object and returns the former one. Does nothing for numbers beyond the table.
    pub(crate) fn put(&self, number: c_int, object: Arc<T>) -> Option<Arc<T>> {
        let at = Self::at(number)?;
        self.end.fetch_max(at + 1, Ordering::AcqRel);
        let former = self.slots[at].swap(Some(object));
        self.used[at].store(true, Ordering::Release);
        former
    }

    pub(crate) fn take(&self, number: c_int) -> Option<Arc<T>> {
        if !self.has(number) {
            return None;
        }
        let at = Self::at(number)?;
        self.used[at].store(false, Ordering::Release);
        self.slots[at].swap(None)
    }

    /// The numbers from `first` to `last`, inclusive, that have objects.
    pub(crate) fn numbers(&self, first: usize, last: usize) -> impl Iterator<Item = c_int> {
        let end = last.saturating_add(1);
        let end = end.min(self.end.load(Ordering::Acquire));
        let numbers = first.min(end)..end;
        numbers
            .filter(|at| self.used[*at].load(Ordering::Acquire))
            .map(|at| at as c_int)
    }
}
