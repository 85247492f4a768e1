//! The memory windows and regions of a device, by the keys that a provider uses to bind windows. The library stores a
//! window's current key in its own structure, which binding changes.

use std::collections::HashMap;
use std::ptr::{NonNull, null_mut};

use portolan_abi_layout as abi;
use portolan_provider::verbs::{MwBind, MwType};
use portolan_provider::{Cause, Error, Result, Step};

/// Identifies a window: the constant part of its key, and a number that is never reused. Both the library's pointer and
/// the key may be reused after a window is deallocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    index: u32,
    serial: u64,
}

/// The windows of a device, by the constant part of their keys.
#[derive(Debug, Default)]
pub(super) struct Windows {
    allocated: HashMap<u32, Window>,
    serials: u64,
}

/// A window, allocated as long as it is in the table. The table's lock protects the key in the library's structure.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) raw: NonNull<abi::Mw>,
    serial: u64,
    pub(super) mw_type: MwType,
    /// Keys of the regions that it was to be bound to, the latest last. Only completions show which bindings were
    /// executed.
    regions: Vec<u32>,
}

/// The regions of a device by their keys, each registered as long as it is in the table.
pub(super) type Regions = HashMap<u32, NonNull<abi::Mr>>;

/// The constant part of a window's key.
fn index(rkey: u32) -> u32 {
    rkey >> 8
}

pub(super) fn no_window() -> Error {
    Error::new(Step::BindMw, Cause::NoSuchObject("memory window"))
}

impl Windows {
    pub(super) fn insert(&mut self, raw: NonNull<abi::Mw>, rkey: u32, mw_type: MwType) -> Place {
        self.serials += 1;
        let (index, serial) = (index(rkey), self.serials);
        let window = Window {
            raw,
            serial,
            mw_type,
            regions: Vec::new(),
        };
        self.allocated.insert(index, window);
        Place { index, serial }
    }

    pub(super) fn at(&mut self, place: Place) -> Option<&mut Window> {
        let window = self.allocated.get_mut(&place.index);
        window.filter(|window| window.serial == place.serial)
    }

    /// Number of windows that may be bound to the region.
    pub(super) fn count_on(&self, lkey: u32) -> usize {
        let windows = self.allocated.values();
        windows.filter(|window| window.opens(lkey)).count()
    }

    /// The type 2 window that has or had this key.
    pub(super) fn of_key(&mut self, rkey: u32) -> Option<&mut Window> {
        self.allocated.get_mut(&index(rkey))
    }

    /// Removes a window from the table.
    pub(super) fn remove(&mut self, place: Place) {
        self.allocated.remove(&place.index);
    }

    /// Deallocates the windows that may be bound to a region, so that it can be deregistered. First those whose latest
    /// binding names the region; if that does not suffice, those that named it earlier. A window for which `dealloc`
    /// fails stays.
    ///
    /// # Errors
    /// The last error of `deregister`.
    pub(super) fn close_on(
        &mut self,
        lkey: u32,
        dealloc: impl Fn(&Window) -> Result<()>,
        deregister: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut outcome = Ok(());
        for is_due in [Window::opened_last, Window::opens] {
            self.allocated
                .retain(|_, window| !is_due(window, lkey) || dealloc(window).is_err());
            outcome = deregister();
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Removes a region that was deregistered.
    pub(super) fn forget_region(&mut self, lkey: u32) {
        for window in self.allocated.values_mut() {
            window.regions.retain(|known| *known != lkey);
        }
    }
}

impl Window {
    fn opens(&self, lkey: u32) -> bool {
        self.regions.contains(&lkey)
    }

    fn opened_last(&self, lkey: u32) -> bool {
        self.regions.last() == Some(&lkey)
    }

    /// A binding to the region is posted.
    pub(super) fn note_region(&mut self, bind: &MwBind) {
        if bind.length > 0 {
            self.regions.retain(|known| *known != bind.lkey);
            self.regions.push(bind.lkey);
        }
    }
}

pub(super) fn region_of(regions: &Regions, bind: &MwBind) -> Result<*mut abi::Mr> {
    match (bind.length, regions.get(&bind.lkey)) {
        (0, _) => Ok(null_mut()),
        (_, Some(region)) => Ok(region.as_ptr()),
        (_, None) => Err(Error::new(
            Step::BindMw,
            Cause::NoSuchObject("memory region"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RKEY: u32 = 0x1200;

    fn bind(lkey: u32, length: u64) -> MwBind {
        MwBind {
            lkey,
            addr: 0x1000,
            length,
            access: portolan_provider::verbs::Access::REMOTE_READ,
        }
    }

    #[test]
    fn a_deallocated_window_is_not_found_even_if_another_has_its_key_and_memory() {
        let mut windows = Windows::default();
        let first = windows.insert(NonNull::dangling(), RKEY, MwType::Type1);
        assert!(windows.at(first).is_some());
        windows.remove(first);
        let second = windows.insert(NonNull::dangling(), RKEY + 1, MwType::Type1);
        assert_eq!(first.index, second.index);
        assert!(windows.at(first).is_none());
        assert!(windows.at(second).is_some());
    }

    #[test]
    fn a_window_counts_for_each_region_of_its_bindings_until_it_is_deallocated() {
        let mut windows = Windows::default();
        let place = windows.insert(NonNull::dangling(), RKEY, MwType::Type2);
        let window = windows.at(place).unwrap();
        for (lkey, length) in [(1, 8), (2, 8), (1, 8), (3, 0)] {
            window.note_region(&bind(lkey, length));
        }
        assert_eq!(window.regions, [2, 1]);
        assert!(window.opened_last(1) && !window.opened_last(2));
        assert_eq!([1, 2, 3].map(|lkey| windows.count_on(lkey)), [1, 1, 0]);
        windows.forget_region(1);
        assert_eq!([1, 2, 3].map(|lkey| windows.count_on(lkey)), [0, 1, 0]);
    }
}
